// Six lessons. Each: something to predict, something to do on the row, what came of it, and the misconception by its name.
// A step is done when the numbers of the row say so. check(row, model) gives [done, what the numbers are now];
// needs names the weightings with which it counts, keeps what has to be as the lesson set it.

import { norm } from "sinkgate/simulator/row.js";

const NINETY = { scores: "3.58351893845611,1.0986122886681098,0", values: "0:0,2:0,4:0", sink: 0 };
const near = (a, b, by) => Math.abs(a - b) <= by;

export const LESSONS = [
  { id: "whole", title: "Why 100%",
    about: "A head compares its query with every key. Suppose that nothing fits: all scores are very low.",
    set: { scores: "1,0.5,0,-1", sink: -1 },
    question: "All four scores are lowered by 8. What is the total mass of the weights?", right: 2,
    choices: ["Nearly 0, since nothing fits.", "Less than before, but not 0.", "Exactly 1, as before."],
    steps: [
      { task: "Shift all scores down by 8 or more, or drag every bar under −5.", now: "highest score {a}, total mass {b}",
        check: (r) => { const top = Math.max(...r.scores); return [top <= -5 && near(r.mass, 1, 1e-12), { a: top, b: r.mass }]; }, needs: ["softmax"] },
      { task: "Now make one weight at least 0.9, with every score still under −5.", now: "largest weight {a}, highest score {b}",
        check: (r) => { const w = Math.max(...r.weights), top = Math.max(...r.scores); return [w >= 0.9 && top < -5, { a: w, b: top }]; }, needs: ["softmax"] },
    ],
    result: "e^c stands in every numerator and in the denominator, and cancels. Only differences of scores reach the weights, and these always share out exactly 1.",
    misconception: "“A low score means little attention.” Only a lower score than the others' does. A head that finds nothing still has to spend 100% somewhere, and what it does not need goes to a sink." },
  { id: "split", title: "The split",
    about: "Key 0 is a sink: its value is 0. Keys 1 and 2 are content, with weights in a certain proportion.",
    set: { scores: "0,1.0986122886681098,0", values: "0:0,2:0,4:0", sink: 0 },
    question: "The sink's score is raised, and it takes weight. From which content key does it take more, in proportion?", right: 2,
    choices: ["From the stronger one.", "From the weaker one.", "From both by the same factor."],
    steps: [{ task: "Drag the sink's bar up until it holds 90% or more. Leave the other two where they are.", now: "sink {a}, share of key 1 within the content {b}",
      check: (r, m) => [r.share >= 0.9 && near(m.scores[1].s - m.scores[2].s, Math.log(3), 1e-9) && near(r.betas[1], 0.75, 1e-9), { a: r.share, b: r.betas[1] }], needs: ["softmax"] }],
    result: "The shares β within the content have not moved; all of them are multiplied by g = 1 − pₛ. Exactly, o = pₛvₛ + g Σ βᵢvᵢ, and with vₛ = 0 the sink is a gate on everything else.",
    misconception: "“The sink steals attention from particular tokens.” It cannot choose: it scales the whole content by one number, which is what a scalar output gate does." },
  { id: "deletion", title: "The deletion",
    about: "The sink holds 90% and its value is 0, so it adds nothing to the output.",
    set: NINETY,
    question: "The sink is deleted and the rest is normalised again. What happens to the output?", right: 2,
    choices: ["Nothing: its value was 0.", "It falls, since 90% of the weight is gone.", "It grows tenfold."],
    steps: [
      { task: "Press “Remove the sink”.", now: "output length {a}, content × {b}", check: (r, m) => [m.cut && r.share >= 0.85 && norm(r.output) > 0, { a: r.length, b: r.factor }], needs: ["softmax"] },
      { task: "With the sink removed, change the sink's score until removing it would no more than double the content.", now: "weight on the sink {a}, content × {b}", check: (r, m) => [m.cut && r.factor <= 2 && r.factor > 1, { a: r.share, b: r.factor }], needs: ["softmax"] },
    ],
    result: "Deleting multiplies the content by 1/(1 − pₛ): the gate that the sink was is opened to 1. Up to pₛ = ½ the factor is at most 2; near 1 it grows without bound.",
    misconception: "“What writes nothing can be removed.” Its weight did the work. Setting the value to 0 and removing the key are different acts: the first keeps the gate, the second opens it." },
  { id: "logit", title: "The sink logit",
    about: "Three scores: 0.04, 0.36 and 0. A learned logit z enters the denominator as e^z and has no value; at z = −∞ it is not there.",
    set: { weighting: "sink_softmax", given: "z:-inf", scores: "0.04,0.36,0", sink: -1, values: "1:0,2:1,-1:1" },
    question: "z is moved from −∞ to 0. What is the total mass then?", right: 1,
    choices: ["Still 1: a zero adds nothing.", "About ¾ to ⅘: one more part of e⁰ = 1.", "Half: the sink takes as much as all keys."],
    steps: [
      { task: "Move z to 0.", now: "z = {a}, total mass {b}", check: (r) => [near(r.z, 0, 1e-9), { a: r.z, b: r.mass }], needs: ["sink_softmax"] },
      { task: "Move z until the keys keep half of the mass, within 0.01.", now: "z = {a}, LSE = {c}, total mass {b}", check: (r) => [near(r.mass, 0.5, 0.01), { a: r.z, b: r.mass, c: r.lse }], needs: ["sink_softmax"] },
    ],
    result: "The mass is σ(LSE − z). At z = 0 the outlet counts as one more key of score 0, and the key whose score is 0 gets weight too; half is reached where z equals the LSE of the scores.",
    misconception: "“z = 0 is no sink.” e⁰ is 1, as much as a key with score 0. No sink is z = −∞, and a fresh parameter of 0 already changes a trained model." },
  { id: "gate", title: "The gate",
    about: "Two keys with the values 2 and 4. The output should be 0.5, the cross in the plane.",
    set: { scores: "0,0", values: "2:0,4:0", target: "0.5:0", sink: -1 },
    question: "Which change can bring the output there, the values being what they are?", right: 2,
    choices: ["Lower scores.", "A lower temperature.", "A gate, or an outlet for the mass."],
    steps: [{ task: "Without moving the values or the target, bring the output within 0.05 of the target.", now: "output {a}, distance {b}, best gate {c}",
      check: (r) => [r.miss !== null && r.miss <= 0.05, { a: r.output[0], b: r.miss, c: r.bestGate }], keeps: ["values", "target"] }],
    result: "Weights that sum to 1 output an average of the values, here between 2 and 4. A gate, a sink logit or a weighting of free mass adds the origin to the hull, and the output can be small.",
    misconception: "“To write little, a head needs small scores.” It needs a small mass, or values that cancel. Mass is not the length of the output either: values −1 and 1 give 0 at mass 1." },
  { id: "sparse", title: "Sparse is not small",
    about: "Sparsemax can give a key exactly nothing. Six keys, and one of them stands out a little.",
    set: { weighting: "sparsemax", scores: "0.4,0,0,0,0,0", values: "2:1,1:2,3:1,2:3,1:1,3:2", sink: -1 },
    question: "One score is raised until five of six weights are exactly 0. What is the total mass?", right: 1,
    choices: ["Small: almost everything is 0.", "Exactly 1.", "One sixth."],
    steps: [
      { task: "Drag one score up until it alone has weight.", now: "keys with weight {a}, total mass {b}", check: (r) => [r.support === 1 && near(r.mass, 1, 1e-12), { a: r.support, b: r.mass }], needs: ["sparsemax"] },
      { task: "Now make the output shorter than 0.1, with sparsemax and the values as they are.", now: "strength g·Σa {a}, length {b}", check: (r) => [r.length < 0.1, { a: r.strength, b: r.length }], needs: ["sparsemax"], keeps: ["values"] },
    ],
    result: "Zeros choose who is read; they do not say how much is written. Sparsemax is a projection on the simplex, so its mass is 1 with one key or with six; a gate sets the strength apart from the choice.",
    misconception: "“Sparse attention needs no sink, since it can say nothing.” It can say nothing about a key, not about the row: with sum 1 there is always a key that gets the rest." },
];
