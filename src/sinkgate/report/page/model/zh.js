import { learn } from "sinkgate/lib/language.js";

learn("zh", {
  // The page and its sections
  "Model": "模型", "Records": "记录", "Sections": "本页各节", "Layers × heads": "层 × 头", "Two records side by side": "两份记录并排", "What acting on the sink did": "对汇动手之后",
  "The text, shaded by what each token receives": "文本：按每个词元得到的质量着色", "Sinks, and how the count depends on the threshold": "汇，以及其数目如何取决于阈值",
  "The residual stream by layer": "逐层的残差流", "Across the series": "沿检查点序列", "What each layer allowed to be measured": "每一层允许测量什么", "How to read this": "如何阅读本页",
  "Map": "图", "Comparison": "比较", "Effects": "效应", "Head": "头", "Text": "文本", "Sinks": "汇", "Residual stream": "残差流", "Series": "序列", "Layers": "层",

  // Header
  "Measured {when}": "测量于 {when}", "Notes": "附注", "model": "模型", "class": "类", "parameters": "参数量", "layers × heads": "层 × 头",
  "{layers} × {heads}, {kv} key–value": "{layers} × {heads}，{kv} 个键值头", "head width": "头宽", "run as": "运行方式", "{dtype} on {device}": "{device} 上的 {dtype}", "attention": "注意力", "fingerprint": "指纹",
  "text": "文本", "length": "长度", "{tokens} tokens × {samples} sample": "{tokens} 个词元 × {samples} 个样本", "{tokens} tokens × {samples} samples": "{tokens} 个词元 × {samples} 个样本",
  "begin token": "起始词元", "sink threshold": "汇的阈值", "detail": "细节级别", "full": "完整", "keys": "各键", "local window": "局部窗口", "{n} keys": "{n} 个键",

  // Kinds of heads and of tokens
  "previous": "前一词元", "local": "局部", "uniform": "均匀", "specific": "特定", "none": "无", "unmeasured": "未测量",
  "bos": "起始词元", "first": "首个词元", "delimiter": "分隔符", "other": "其他", "secondary": "次级汇",

  // Map
  "Quantity on the map": "图上的量", "window of {n}": "长 {n} 的窗口", "not measured": "未测量", "full attention": "全注意力", "Layer {l} · head {k}": "第 {l} 层 · 第 {k} 头", "layer {l}, head {k}": "第 {l} 层第 {k} 头",
  "Reason: {why}": "原因：{why}", "{kind} head, {span}": "类型：{kind}，{span}", "layer ↓": "层 ↓", "head →": "头 →", "{label} by layer and head": "按层与头排列的{label}", "Map of {label}": "图：{label}",
  "Colour scale from {low} to {high}, logarithmic": "色标从 {low} 到 {high}，对数", "Colour scale from {low} to {high}": "色标从 {low} 到 {high}", "logarithmic scale": "对数刻度", "two-sided scale around 0": "以 0 为中心的双向刻度", "linear scale": "线性刻度", "in {unit}": "单位：{unit}",
  "windowed layer": "窗口层", "learned sink logit": "学习得到的汇 logit", "gaps part heads that share a key–value head": "空隙隔开共用一个键值头的各头", "Highest:": "最高：", "Open layer·head": "打开层·头",
  "layer": "层", "head": "头", "head {k}": "头 {k}",

  // Quantities: labels and what they say (sinkgate/report/payload.py, samples.py)
  "mass over null": "质量份额与零假设基线之比", "first-token mass": "第一个词元的质量份额", "sink rate": "汇率", "margin": "间隔", "learned sink mass": "学习得到的汇的质量份额", "strongest other key": "最强的其他键", "sink write ratio": "汇的写入比",
  "value norm ratio": "值的范数比", "query–key cosine": "查询与键的余弦", "entropy": "熵", "local mass": "局部质量份额", "head kind": "头的类型",
  "Mean weight on the first token over what attention that ignores the text would give it. 1 is no preference.": "第一个词元的平均权重，除以不看文本的注意力会给它的权重。1 表示没有偏好。",
  "Mean weight on the first token over the queries that see it (Gu's α₁).": "看得见第一个词元的各查询给它的平均权重（Gu 等人的 α₁）。",
  "Share of the samples in which the head is a sink head: the first token gets more than {threshold} of its attention.": "该头在多大比例的样本中是汇头，即把超过 {threshold} 的注意力给了第一个词元。",
  "z_s − LSE(everything else) = logit p_s, mean over queries: how far the sink's score stands over the rest.": "z_s − LSE（其余一切）= logit p_s，对查询取平均：汇的得分比其余高出多少。",
  "Mean weight that the learned sink logit takes; the rows sum to one minus this.": "学习得到的汇 logit 取走的平均权重；每行之和等于一减去它。",
  "The largest α of any key but the first, mean over samples.": "除第一个键外各键中最大的 α，对样本取平均。",
  "What the first token's share writes to the residual stream over what the head writes: near 0 a no-op, near 1 a broadcast.": "第一个词元那一份写入残差流的量，除以该头写入的总量：接近 0 是空操作，接近 1 是广播。",
  "‖v‖ of the first token over the mean ‖v‖ of the others.": "第一个词元的 ‖v‖ 除以其他词元 ‖v‖ 的平均。",
  "Cosine of the mean query with the first token's key.": "平均查询与第一个词元的键之间的余弦。",
  "Entropy of the weights over that of uniform attention.": "权重的熵，除以均匀注意力的熵。",
  "Mean mass on the last {window} tokens, the query's own included.": "最近 {window} 个词元（含查询自身）得到的平均质量份额。",
  "By the first rule that holds: sink, previous, local, uniform, specific, none.": "按第一条成立的规则：汇、前一词元、局部、均匀、特定、无。",
  "null of the first-token mass": "第一个词元质量份额的零假设基线", "entropy over uniform": "熵与均匀注意力之比", "largest norm of the first token": "第一个词元的最大范数", "largest mean norm of the others": "其他词元平均范数的最大值",

  // Eviction
  "effect of eviction": "移除的效应", "eviction: loss change, measured": "移除：损失变化（实测）", "eviction: KL, measured": "移除：KL（实测）", "eviction: first-order estimate": "移除：一阶估计",
  "What the loss changes by when a head alone no longer sees the sink.": "当某一个头单独看不到汇时，损失改变多少。",
  "This head was not evicted on its own; see the first-order estimate.": "没有单独对这个头做移除；请看一阶估计。", "This head was not screened.": "没有对这个头做筛查。",
  "Measured: {heads} heads, one at a time, no longer see {target} from query {burn} on; mean change of the loss over {samples} texts against the untouched model.": "实测：{heads} 个头逐一从查询 {burn} 起看不到{target}；相对未改动模型的损失变化，对 {samples} 段文本取平均。",
  "Measured: KL(untouched ‖ evicted) of the predictions when one head alone no longer sees {target} from query {burn} on; {heads} heads, {samples} texts.": "实测：某一个头单独从查询 {burn} 起看不到{target}时，预测的 KL（未改动 ‖ 移除后）；{heads} 个头，{samples} 段文本。",
  "Screening, not a measurement: to first order (attribution patching), what the loss would change by if this head alone no longer saw {target} from query {burn} on; mean over {samples} texts.": "这是筛查而非实测：按一阶近似（归因修补），若这个头单独从查询 {burn} 起看不到{target}，损失会改变多少；对 {samples} 段文本取平均。",
  "95% interval {low} to {high}": "95% 区间 {low} 至 {high}", "one text: no interval": "只有一段文本：没有区间", "{value} ({low} to {high})": "{value}（{low} 至 {high}）",
  "The record of effects at hand holds no single heads. Evicting {target} in all its heads at once changes the loss by {change} nats.": "手头的效应记录不含单个头。在其所有头中同时移除{target}，损失改变 {change} 奈特。",
  "Not measured yet: no record of effects of this model (fingerprint {fingerprint}) was given.": "尚未测量：没有给出这个模型（指纹 {fingerprint}）的效应记录。",
  "These commands measure it, and show it here:": "以下命令测量它，并显示在这里：",
  "On {samples} texts of up to {tokens} tokens, at {target}, from query {burn} on; losses in nats per token, with 95% intervals over texts.": "在 {samples} 段至多 {tokens} 个词元的文本上，作用于{target}，从查询 {burn} 起；损失以每词元奈特计，附对文本的 95% 区间。",
  "Acts in all heads at once": "在所有头中同时进行的操作", "act": "操作", "{act}: its control, a random other key": "{act}：其对照，一个随机的其他键", "loss change": "损失变化", "over its control": "超出对照", "same top token": "首选词元相同",
  "Heads evicted one by one": "逐一移除的头", "None: only the whole model was acted on.": "无：只对整个模型做了操作。", "chosen": "选取方式", "top": "筛查居前", "random": "随机", "estimate": "估计",
  "Evicting the sink in this head alone changed the loss by {change} nats, measured on {samples} texts.": "单独在这个头中移除汇，损失改变了 {change} 奈特，在 {samples} 段文本上实测。",
  "The sink was not evicted in this head alone.": "没有单独在这个头中移除汇。", "First-order estimate of that: {value} nats.": "其一阶估计：{value} 奈特。",

  // Two records
  "Record": "记录", "Compare with": "与之比较", "Swap": "对调", "A is “{a}”, B is “{b}”; differences are B − A.": "A 是“{a}”，B 是“{b}”；差值为 B − A。", "Both have the same weights.": "两者的模型权重相同。", "Their weights differ.": "两者的模型权重不同。",
  "Their maps cannot be laid over each other: A has {a} heads (layers × heads), B has {b}. Choose two records of one shape.": "两张图无法叠放：A 有 {a} 个头（层 × 头），B 有 {b}。请选两份形状相同的记录。",
  "“{label}” is not in both records; choose another quantity on the map.": "“{label}”并非两份记录都有；请在图上换一个量。", "{label}: B − A": "{label}：B − A", "{label}: log₂ of B / A": "{label}：B / A 的 log₂", "{label} of {name}, by layer and head": "{name} 的{label}，按层与头排列",
  "{n} of {all} heads changed their kind; their cells are filled.": "{all} 个头中有 {n} 个改变了类型；其方格为实心。", "A: {name}": "A：{name}", "B: {name}": "B：{name}", "the same": "相同", "changed": "改变",
  "Heads that differ most": "差别最大的头", "No head differs.": "没有头不同。", "log₂ of B / A": "B / A 的 log₂", "A record that keeps no numbers by sample has no table of differences.": "记录若不按样本保存数值，就没有差值表。",
  "Both read the same {n} samples: intervals are Student’s, 95%, of the differences in pairs.": "两者读的是同样 {n} 个样本：区间为成对差值的学生氏 95% 区间。",
  "They read different samples ({a} and {b}): intervals are Welch’s, 95%, not paired; the texts’ own differences are in them.": "两者读的样本不同（{a} 个与 {b} 个）：区间为韦尔奇 95% 区间，不成对；其中含有文本本身的差别。",
  "Summary numbers, means over heads and samples": "概要数值：对头与样本取平均", "The records have no number in common.": "两份记录没有共同的数值。", "quantity": "量", "low": "下界", "high": "上界", "told apart from 0": "与 0 可区分",

  // A head
  "query position t (log)": "查询位置 t（对数）", "query position": "查询位置", "Weight on the first token": "第一个词元的权重", "share of the query’s weight": "占查询权重的份额", "measured": "实测", "null: uniform": "零假设基线：均匀",
  "Margin of the first token’s score": "第一个词元得分的间隔", "zₛ − LSE(content), nats": "zₛ − LSE（内容），奈特", "law: ln(t − 1) + logit r": "规律：ln(t − 1) + logit r", "Spread over queries": "在查询上的分布", "from": "从", "to": "到",
  "Split: weight and what it carries": "拆分：权重及其承载", "value": "值", "Sink write ratio, after the output map: {ratio}.": "输出映射之后的汇的写入比：{ratio}。", "Predicted: deleting the sink multiplies the content by {factor}.": "预测：删去汇会使内容放大 {factor} 倍。",
  "Of what is left, g, the strongest other key has β = {beta} (its mean mass over g).": "在余下的 g 中，最强的其他键占 β = {beta}（其平均质量份额除以 g）。",
  "Keys that receive most": "得到最多的键", "position": "位置", "kind": "类型", "mass": "质量份额", "null": "零假设基线", "mass / null": "份额 / 基线", "write ratio": "写入比",
  "Geometry of keys and values": "键与值的几何", "length of the key, ‖k‖": "键的长度 ‖k‖", "length of the value, ‖v‖": "值的长度 ‖v‖", "first token": "第一个词元", "the others, mean": "其他词元的平均", "ratio": "比值",
  "Cosine of the mean query with the first token’s key: {cosine}. Keys are taken after the rotary embedding; means over samples.": "平均查询与第一个词元的键的余弦：{cosine}。键取自旋转位置编码之后；对样本取平均。",
  "Values of this head": "这个头的各项数值", "note": "附注", "Not recorded at detail “{detail}”.": "在细节级别“{detail}”下没有记录。", "No curves at detail “{detail}”.": "在细节级别“{detail}”下没有曲线。", "Not measured.": "未测量。", "No reason was recorded.": "没有记录原因。",
  "Nothing was recorded for this head at detail “{detail}”.": "在细节级别“{detail}”下没有记录这个头。",
  "null {null}": "零假设基线 {null}", "excess over null": "超出零假设基线", "one sample: no interval": "只有一个样本：没有区间", "p_s by query, median": "各查询的 p_s，中位数", "5% to 95%: {low} to {high}": "5% 至 95% 分位：{low} 至 {high}",
  "logit p_s, mean over queries": "logit p_s，对查询取平均", "predicted amplification on eviction": "预测的移除后放大倍数", "1/(1 − p_s), geometric mean": "1/(1 − p_s)，几何平均", "rows sum to one minus this": "每行之和等于一减去它",
  "Σ‖p_s write(v_s)‖ / Σ‖write(o)‖": "Σ‖p_s · 写入(v_s)‖ / Σ‖写入(o)‖", "content write ratio": "内容的写入比", "the same for everything else": "对其余一切同样计算", "{share} of uniform": "均匀注意力的 {share}",
  "mass on the last {window} tokens": "最近 {window} 个词元的质量份额", "mass on the token before": "前一个词元的质量份额", "mass on the query's own token": "查询自身词元的质量份额",

  // Sinks, residual stream, layers, series
  "Sinks found": "找到的汇", "No position passed the threshold.": "没有位置超过阈值。", "heads": "头数", "samples": "样本数", "threshold ε": "阈值 ε", "share of heads": "头的比例", "mean over samples, then ε": "先对样本取平均，再比 ε", "ε per sample, then mean": "先逐样本比 ε，再取平均",
  "Sink rate": "汇率", "mean, then ε": "先平均后 ε", "ε, then mean": "先 ε 后平均", "Sink rate at {n} thresholds": "{n} 个阈值下的汇率", "Sink rate by threshold": "随阈值变化的汇率",
  "The report’s own threshold is {threshold}. Both readings of the published definition are shown.": "本报告的阈值为 {threshold}。已发表定义的两种读法都列出。",
  "The residual stream was not measured.": "没有测量残差流。", "before layer (0: embedding)": "在该层之前（0：嵌入）", "before layer": "在该层之前", "Norm": "范数", "‖h‖ (log)": "‖h‖（对数）", "the rest": "其余", "Largest and median magnitude": "最大与中位幅度",
  "|h| of one coordinate (log)": "单个坐标的 |h|（对数）", "largest": "最大", "median": "中位数", "Kurtosis of the coordinates": "各坐标的峰度", "kurtosis (log)": "峰度（对数）", "kurtosis": "峰度", "Massive activations": "巨量激活",
  "None stand far enough above their layer’s median.": "没有哪个远远高出所在层的中位数。", "dimension": "维度", "over median": "与中位数之比", "1 layer of {all} could not be measured.": "{all} 层中有 1 层无法测量。", "{n} layers of {all} could not be measured.": "{all} 层中有 {n} 层无法测量。",
  "All {all} layers were measured.": "{all} 层全部测量。", "In 1 layer what the sink writes could not be.": "有 1 层无法测量汇写入了什么。", "In {n} layers what the sink writes could not be.": "有 {n} 层无法测量汇写入了什么。",
  "layers": "层", "{low} to {high}": "{low} 至 {high}", "first of them": "其中第一层", "learned sink": "学习得到的汇", "why not measured, or no write ratio": "为何未测量，或没有写入比",
  "share": "份额", "First-token mass and sink rate": "第一个词元的质量份额与汇率", "The band is the interval of the first-token mass.": "色带为第一个词元质量份额的区间。", "The series": "序列", "name": "名称",

  // Text
  "The text was not recorded.": "没有记录文本。", "Position {i}": "位置 {i}", "token {token}": "词元 {token}", "mass {mass}, null {null}": "质量份额 {mass}，零假设基线 {null}", "not measurable: too few queries see it": "无法测量：看得见它的查询太少", "{ratio} its null": "基线的 {ratio}",
  "{ratio} times its null": "基线的 {ratio} 倍", "Tokens of one sample": "一个样本的词元", "Shading scale, mass over null": "着色刻度：质量份额与零假设基线之比",
  "Mean over heads of the mass each token receives, over what uniform attention would give it (1×), on a log scale that the other tokens set.": "各头平均下每个词元得到的质量份额，除以均匀注意力会给它的（1×）；对数刻度，由其他词元定标。",
  "The outlined token, position {i}, receives {ratio} and lies off the scale.": "加框的词元（位置 {i}）得到 {ratio}，超出刻度。", "The outlined token, position {i}, receives {ratio}.": "加框的词元（位置 {i}）得到 {ratio}。",
  "Dotted: too few queries see the token to say.": "虚线：看得见该词元的查询太少，无法判断。", "Save the tokens and their mass as CSV": "把词元及其质量份额存为 CSV",

  // Glossary
  "Quantities and formulas": "各量与公式", "One attention head, one query that sees t keys, weights A that add up to 1 (to less, where a learned outlet takes a share). Over T queries:": "一个注意力头，一个看得见 t 个键的查询，权重 A 之和为 1（若学习得到的出口取走一份，则小于 1）。对 T 个查询：",
  "“—” means not measurable; a hatched cell gives its reason. Keys: arrows move over the map, Home and End go to the ends of a row, Page Up and Page Down jump five layers, Enter opens the head. The address holds what you look at, so a view can be shared.": "“—”表示无法测量；带斜线的方格会说明原因。按键：方向键在图上移动，Home 和 End 到行首行尾，Page Up 和 Page Down 跳五层，Enter 打开该头。地址里记着你正在看的内容，因此可以分享。",
  "Mass on key k": "键 k 的质量份额", "The mean weight over the queries that can see the key (Gu et al., ICLR 2025, arXiv 2410.10781). A head counts as a sink head when α₁ is above a threshold ε; the sink rate is the share of such heads.": "看得见该键的各查询给它的平均权重（Gu et al., ICLR 2025, arXiv 2410.10781）。α₁ 高于阈值 ε 的头算作汇头；汇率是这种头的比例。",
  "Null": "零假设基线", "What uniform causal attention would give the same key; H is the harmonic number. Early keys are seen by more queries with short rows, so their null is not small: 0.074 for the first of 64 keys, above 0.3 for 9 or fewer. A key that fewer than 32 queries see is no evidence.": "均匀的因果注意力会给同一个键的权重；H 为调和数。靠前的键被更多短行的查询看到，因此其基线并不小：64 个键中的第一个为 0.074，9 个或更少时高于 0.3。看得见它的查询少于 32 个的键不能作为证据。",
  "Mass over null": "质量份额与基线之比", "1× is what a head without preference shows.": "没有偏好的头显示 1×。", "Share and gate": "份额与门",
  "pₛ is the weight on the sink, g what is left for content. When vₛ is near zero the sink is a scalar output gate: pₛ = 0.9 lets a tenth of the content through.": "pₛ 是汇的权重，g 是留给内容的部分。当 vₛ 接近零时，汇就是一个标量输出门：pₛ = 0.9 只让十分之一的内容通过。",
  "Margin": "间隔", "How far the sink's score stands above all content together. Against n − 1 equal content scores, keeping a share r at query t takes a score lead of ln(t − 1) + logit r: the law drawn beside the margin.": "汇的得分比全部内容合起来高出多少。面对 n − 1 个相等的内容得分，要在查询 t 处保持份额 r，得分须领先 ln(t − 1) + logit r：这就是画在间隔旁边的规律。",
  "Sink write ratio": "汇的写入比", "How much of what the head adds to the residual stream comes from the sink. It can exceed 1 when sink and content cancel. A sink with high mass and a ratio near 0 is an idle head, not an important token.": "该头加到残差流上的量有多少来自汇。当汇与内容相互抵消时可以超过 1。质量份额高而写入比接近 0 的汇，说明头在空闲，而不是词元重要。",
  "Amplification": "放大倍数", "What deleting the sink, with the rest renormalised, multiplies the content by.": "删去汇并把其余重新归一化后，内容被放大的倍数。", "Massive activation": "巨量激活",
  "A single coordinate of the residual stream far above the median magnitude of its layer; sink tokens often carry one.": "残差流中远高于所在层中位幅度的单个坐标；汇词元上常有一个。",
});
