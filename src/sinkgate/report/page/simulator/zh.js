import { learn } from "sinkgate/lib/language.js";

learn("zh", {
  "Simulator": "模拟器",
});
