import { learn } from "sinkgate/lib/language.js";
import "sinkgate/lab/zh_numbers.js";

learn("zh", {
  "Lab": "实验室",
  "Arms are trained side by side: the same task, seeds, steps, data and start. What differs is drawn, with its interval; what cannot be told apart is called so.":
    "各方案并排训练：任务、种子、步数、数据和初始参数都相同。差异连同区间一起画出；分辨不出的，就说分辨不出。",
  "Comparison": "比较", "Shown": "显示", "Nothing to show yet: start a comparison above.": "还没有可显示的内容：请在上方启动一次比较。",
  "No comparison is stored in this file. sinkgate compare writes one; sinkgate studio DIR shows it here.": "本文件中没有比较记录。sinkgate compare 会写出记录；sinkgate studio DIR 会在此处显示它。",
  "There is no comparison {id} here.": "这里没有名为 {id} 的比较。", "Runs are shown by the server that started them: sinkgate studio DIR": "运行由启动它的服务器显示：sinkgate studio DIR",
  "This run was stopped; resume it above.": "该运行已停止；可在上方继续。",
  // runs
  "backcopy: bigrams, and a copy behind triggers": "backcopy：二元链，触发词之后复制", "trigger: the mean of what came before, at one token": "trigger：在一个词元处输出前文的均值",
  "text: next token of real text (preset tiny)": "text：真实文本的下一个词元（预设 tiny）", "starting": "启动中", "running": "运行中", "stopping": "停止中", "stopped": "已停止", "done": "已完成", "failed": "失败",
  "Start": "启动", "No runs yet.": "还没有运行。", "Task": "任务", "Arms, the first one the baseline": "方案（第一个为基线）", "Seeds": "种子", "Steps of each run": "每次训练的步数",
  "Runs go on when the page or the server is closed; {n} at once. What would run:": "关闭页面或服务器后运行仍会继续；最多同时 {n} 个。将要执行的命令：",
  "A file cannot start anything. This command trains the same in a terminal; sinkgate studio DIR serves these pages with the buttons working:": "文件本身无法启动任何程序。在终端中用下面的命令可做同样的训练；sinkgate studio DIR 提供按钮可用的同一页面：",
  "Train a small comparison": "训练一次小型比较",
  "An arm is a weighting (softmax, sink_softmax, softpick, sigmoid, …) and what is added to it: + g1, + window(32), + keep(4), + sink_token, + head_norm. At most {n} arms.":
    "一个方案由权重函数（softmax、sink_softmax、softpick、sigmoid……）及附加部分组成：+ g1、+ window(32)、+ keep(4)、+ sink_token、+ head_norm。最多 {n} 个方案。",
  "Runs": "运行", "Progress of {id}": "{id} 的进度", "{act} run {id}": "{act}运行 {id}", "Show": "显示", "Stop": "停止", "Resume": "继续",
  "{made} of {steps} steps, {ended} of {pieces} pieces": "{steps} 步中的 {made} 步，{pieces} 个训练中的 {ended} 个",
  // one comparison
  "arm": "方案", "learning rate": "学习率", "difference [95% interval]": "差异 [95% 区间]", "finding": "结论", "loss spikes": "损失尖峰", "runs that diverged": "发散的训练", "parameters": "参数量",
  "time per step, × baseline": "每步用时（相对基线）", "Along the training": "训练过程", "The run is starting: its plan is not written yet.": "运行正在启动：计划尚未写出。", "Another number": "另一个量", "Nothing is logged yet.": "还没有日志。",
  "What the curves show": "曲线内容", "values": "数值", "paired differences": "配对差异", "Arms": "方案", "all: mean, lowest to highest": "全部：均值与最低至最高", "seed {n}": "种子 {n}", "Layers of": "分层显示",
  "One arm: there is nothing to compare it with.": "只有一个方案：没有可比较的对象。", "In numbers": "数值", "Each arm at its best learning rate: mean ± half the 95% interval over seeds": "各方案取其最佳学习率：种子间均值 ± 95% 区间的一半",
  "Intervals are Student's, 95%, over {n} seeds; differences are paired by seed. Same task, seeds, steps, order of the data and start of what arms have in common.":
    "区间为 {n} 个种子上的 95% 学生 t 区间；差异按种子配对。任务、种子、步数、数据顺序以及共有参数的初值均相同。",
  "Differences from the baseline": "与基线的差异", "Of": "所比的量", "All {n} runs of this comparison": "本次比较的全部 {n} 次训练", "Every run": "每次训练", "seed": "种子", "steps": "步数",
  "{what}, choosing": "{what}（用于选择）", "{what}, reported": "{what}（用于报告）", "spikes": "尖峰", "diverged": "发散", "at step {n}: {why}": "第 {n} 步：{why}",
  "So far": "目前进展", "Every piece, as last logged; intervals come when all have ended": "每次训练的最新日志；全部结束后才有区间", "step": "步", "state": "状态", "ended": "已结束", "waits": "等待", "trains": "训练中",
  "baseline": "基线", "better": "更好", "worse": "更差", "higher": "更高", "lower": "更低", "no difference found": "未发现差异", "nothing to compare (diverged)": "无可比较（已发散）",
  "one seed: no spread, nothing can be said": "只有一个种子：没有离散度，无法下结论",
  "{arm} is better than {base}: {name} {difference}, paired over {n} seeds.": "{arm} 优于 {base}：{name} {difference}，在 {n} 个种子上配对。",
  "{arm} is worse than {base}: {name} {difference}, paired over {n} seeds.": "{arm} 不如 {base}：{name} {difference}，在 {n} 个种子上配对。",
  "{arm} against {base}: no difference found at this size ({name} {difference}, {n} seeds; one smaller than {half} could not have been seen).":
    "{arm} 与 {base}：在此规模下未发现差异（{name} {difference}，{n} 个种子；小于 {half} 的差异本来就看不出）。",
  "{arm} against {base}: nothing to compare (diverged).": "{arm} 与 {base}：无可比较（已发散）。", "{arm} against {base}: one seed: no spread, nothing can be said.": "{arm} 与 {base}：只有一个种子：没有离散度，无法下结论。",
  "{arm} diverged at learning rate {rates} ({n} run).": "{arm} 在学习率 {rates} 下发散（{n} 次训练）。", "{arm} diverged at learning rate {rates} ({n} runs).": "{arm} 在学习率 {rates} 下发散（{n} 次训练）。",
  "{arm} was best at the lowest rate tried: its best one may lie beyond.": "{arm} 在所试的最低学习率下最好：更好的可能还在范围之外。", "{arm} was best at the highest rate tried: its best one may lie beyond.": "{arm} 在所试的最高学习率下最好：更好的可能还在范围之外。",
  "{n} pieces took over {minutes} minutes.": "{n} 次训练用时超过 {minutes} 分钟。", "{n} times a piece was taken up again, after a kill or a lost worker.": "训练曾 {n} 次在中断后继续。",
  // figures
  "first-token mass, layer {n}": "首词元质量份额，第 {n} 层", "{what}: difference from {base}, paired by seed": "{what}：与 {base} 之差，按种子配对", "training loss": "训练损失", "uniform attention": "均匀注意力（零假设基线）", "no difference": "无差异",
  "{title}. Arrow keys read the values.": "{title}。用方向键读取数值。", "(log scale)": "（对数刻度）", "Nothing is logged of this yet.": "尚无日志。", "Loss of the batches that were trained on.": "训练批次的损失。",
  "Triangles: {n} spikes, losses over twice the median of the twenty before.": "三角：{n} 个尖峰，即损失超过之前二十步中位数的两倍。", "Crosses: where a run diverged; it is drawn thin and is in no mean.": "叉号：训练发散之处；以细线画出，不计入均值。",
  "Line: the mean over seeds of the difference at the same step; area: from the lowest to the highest seed.": "线：同一步的差异在种子间的均值；色带：从最低到最高的种子。",
  "Sink mass by layer: {arm}": "各层的汇质量份额：{arm}", "layer {n}": "第 {n} 层", "weight on the first key": "首个键上的权重",
  "Mean weight of a query on the first key, over a layer's heads, on held-out data; mean over seeds.": "留出数据上，查询对首个键的平均权重，在一层的各头上平均；再对种子取均值。",
  "At the end: {what}": "训练结束时：{what}", "layer": "层", "{what}: difference from {base}": "{what}：与 {base} 之差", "No pair of runs has this number.": "没有一对训练同时具有此量。",
  "Large dots: mean and 95% interval over seeds, paired, filled where it leaves out zero; small dots: single seeds.": "大点：按种子配对的均值与 95% 区间，区间不含零时为实心；小点：单个种子。",
  "difference": "差异", "low": "下限", "high": "上限", "seeds": "种子数",
});
