// The pages, in the order of the tabs: a new one is one folder and one line. Those of one kind of record are there when there is one.

import { kv } from "sinkgate/kv/page.js";
import { lab } from "sinkgate/lab/page.js";
import { model } from "sinkgate/model/page.js";
import { plan } from "sinkgate/plan/page.js";
import { simulator } from "sinkgate/simulator/page.js";
import { stream } from "sinkgate/stream/page.js";
import "sinkgate/zh.js";

export const PAGES = [model, plan, simulator, stream, lab, kv];
