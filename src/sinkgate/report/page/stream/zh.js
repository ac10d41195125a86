import { learn } from "sinkgate/lib/language.js";

learn("zh", {
  "Stream": "流",
});
