import { learn } from "sinkgate/lib/language.js";

learn("zh", {
  "Model": "模型",
});
