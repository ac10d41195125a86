import { learn } from "sinkgate/lib/language.js";

learn("zh", {
  "Lab": "实验室",
});
