import { learn } from "sinkgate/lib/language.js";

learn("zh", {
  "KV cache": "KV 缓存",
});
