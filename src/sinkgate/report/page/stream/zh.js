import { learn } from "sinkgate/lib/language.js";

learn("zh", {
  "Stream": "流",
  // page.js
  "What the cache holds": "缓存里有什么", "Read: caches side by side": "阅读：并排比较各种缓存", "Write: on and on": "写作：不停地写下去", "Stored curves": "已存的曲线",
  "Endless text in bounded memory": "用有限的内存读无尽的文本",
  "A key–value cache grows with every token. Keep only the last ones, and a model that leans on its first token falls apart when that token leaves; keep a few first tokens besides, and it goes on. What is evicted is gone: a bounded stream is fluent, and no memory.":
    "键值缓存随每个词元增长。若只保留最近的词元，依赖首词元的模型在它被逐出时就会崩溃；若另外保留开头几个词元，模型便能一直读下去。被逐出的就没有了：有界的流读得通顺，却不是记忆。",
  "This record lacks its arms or its model; it cannot be drawn.": "这条记录缺少各臂或模型信息，无法绘制。",
  "not complete": "不完整", "facts asked for by distance": "按距离提问的事实", "record": "记录", "perplexity along a text": "沿文本的困惑度", "recall by distance": "按距离的召回",
  // cache.js
  "recent tokens, n": "最近的词元数 n", "sinks kept, k": "保留的汇 (sink) 数 k", "the stream has reached token": "流已读到的词元",
  "Positions": "位置", "positions counted in the cache": "按缓存内位置计", "positions of the text": "按文本中位置计", "Play": "播放", "Pause": "暂停", "One token back": "后退一个词元", "One token on": "前进一个词元",
  "A bounded cache, one token after another. Each box is a slot that holds the key and value of one token; the recent ones take turns in a ring. Only what lies in a slot can be attended to: what was evicted is gone.":
    "有界缓存，逐个词元。每个方格是一个槽，存放一个词元的键和值；最近的词元在环形缓冲里轮换。只有还在槽里的才能被注意到：被逐出的就没有了。",
  "Token {at} has come: {held} of {all} slots are filled. Its query counts as position {query}; the first token held is token {first}, {far} positions away.":
    "词元 {at} 已到：{all} 个槽中有 {held} 个已填。它的查询算作位置 {query}；仍保留的最早词元是词元 {first}，相距 {far} 个位置。",
  "Nothing has been evicted yet.": "尚未逐出任何词元。", "Just evicted: token {token}, “{word}”.": "刚刚逐出：词元 {token}，“{word}”。",
  "token {n}": "词元 {n}", "gone": "已逐出", "sink": "汇 (sink)", "newest": "最新", "recent": "最近", "evicted": "逐出",
  "The slots of the cache at token {at}: {listed}": "读到词元 {at} 时缓存的各槽：{listed}", "The text; what is struck out was evicted": "文本；划去的词元已被逐出",
  "Distance from the query to the first token held: {original} with positions of the text, {slots} counted in the cache": "查询到仍保留的最早词元的距离：按文本中位置为 {original}，按缓存内位置为 {slots}",
  "distance from the query to the first token held": "查询到仍保留的最早词元的距离", "token of the stream": "流中的词元",
  // curves.js
  "full: everything kept": "完整：全部保留", "window alone, {n}": "仅窗口，{n}", "1 sink + {n} recent": "1 个汇 (sink) + 最近 {n} 个", "{k} sinks + {n} recent": "{k} 个汇 (sink) + 最近 {n} 个",
  "cache positions": "缓存内位置", "text positions": "文本中位置", "recomputed": "重新计算",
  "tokens of the text": "文本的词元", "tokens": "词元", "perplexity (log)": "困惑度（对数）", "Nothing was read yet.": "尚未读到任何内容。", "{title}. Arrow keys read the values.": "{title}。用方向键读数值。",
  "Perplexity of everything so far": "迄今全部的困惑度",
  "Lower is better: the mean over all predictions up to here, exponentiated. Every arm reads the same text, each token predicted from what its cache still holds.": "越低越好：到此为止所有预测的平均值再取指数。各臂读同一文本，每个词元都由其缓存中仍有的内容来预测。",
  "Perplexity of each stretch of {n} tokens": "每 {n} 个词元一段的困惑度", "Arms of which only some predictions were made are drawn as steps of at least {n} of them.": "只做了部分预测的臂画成阶梯，每级至少含 {n} 次预测。",
  "What each cache cost": "各缓存的代价", "cache": "缓存", "keeps": "保留", "every window afresh": "每个窗口重新计算", "positions": "位置", "perplexity": "困惑度", "predictions": "预测数", "tokens/s": "词元/秒", "cache size": "缓存大小", "tokens held": "所存词元", "note": "说明", "not to the end": "未读到末尾",
  // recall.js
  "No question was answered.": "没有回答任何问题。", "guessing": "猜测", "Answers that are right: {kind}": "答对的比例：{kind}", "tokens between the fact and its question": "事实与其提问之间的词元数", "distance": "距离", "answered exactly": "完全答对",
  "The window holds {n} tokens: a fact further back is gone.": "窗口容纳 {n} 个词元：更早的事实已不在。", "Right, of how many: {kind}": "答对数/总数：{kind}",
  // controls.js
  "This page is a file, and a file runs no model. This does the same:": "本页是文件，文件不能运行模型。下面的命令效果相同：", "This studio was started without a model; start it with one:": "工作室启动时没有指定模型；请这样启动：", "or run:": "或运行：", "The same from a shell:": "在命令行中做同样的事：",
  // read.js
  "Caches": "缓存", "window alone": "仅窗口", "window + 1 sink": "窗口 + 1 个汇 (sink)", "window + 4 sinks": "窗口 + 4 个汇 (sink)", "Read": "阅读", "Stop": "停止", "What is read, and how": "读什么、怎么读",
  "model": "模型", "tokens at most": "词元数上限", "tokens a cache holds": "缓存容纳的词元数", "of the cache": "缓存内", "of the text": "文本中", "another policy (optional)": "另一种策略（可选）", "text (empty: the packaged speeches)": "文本（留空：自带的演说）",
  "One real text, read under several caches: every token is predicted from what a cache still holds, and then shown to it (teacher-forced). Watch the window alone degrade once the first token has left it, and a single kept sink save it.":
    "同一段真实文本，在几种缓存下阅读：每个词元先由缓存中仍有的内容预测，再给模型看（教师强制）。请看首词元一离开窗口，仅窗口的一臂便恶化；只要保留一个汇 (sink)，就能挽救它。",
  "Save the record (stream.json)": "保存记录 (stream.json)", "Loading {model}…": "正在载入 {model}…", "{done} of {all} tokens; {arm}: perplexity {value}": "{all} 个词元中的 {done} 个；{arm}：困惑度 {value}", "Read to the end.": "已读到末尾。", "Stopped.": "已停止。",
  // write.js
  "What is written, and how": "写什么、怎么写", "the cache keeps": "缓存保留", "temperature (0: the most likely)": "温度（0：取最可能的）", "seed": "随机种子", "prompt": "提示",
  "The model goes on by itself, through a bounded cache. The perplexity of a model’s own text says nothing, so it is not shown: look at the speed, which stays, and at how much the text repeats itself.":
    "模型通过有界缓存自己写下去。模型自己文本的困惑度说明不了什么，因此不显示：请看速度（保持不变），以及文本重复了多少。",
  "Write": "写作", "What was written": "写出的文本", "tokens written": "已写词元", "tokens a second": "每秒词元", "lately {now}": "最近 {now}", "said again": "重复",
  "share of the {n}-token sequences in the last {span} tokens that stood there before": "最近 {span} 个词元中，此前已出现过的 {n} 词元序列所占的比例", "held in the cache": "缓存中所存", "share said again": "重复的比例", "Share of sequences said again, along the text": "沿文本的重复序列比例",
  "How much it repeats itself": "重复了多少", "Reading the prompt: {done} of {all} tokens": "正在读提示：{all} 个词元中的 {done} 个", "Writing…": "正在写…", "The model ended its text.": "模型结束了它的文本。", "As many tokens as were asked for.": "已写够所要求的词元数。", "A stop text was reached.": "遇到了停止文本。",
});
