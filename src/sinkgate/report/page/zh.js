import { learn } from "sinkgate/lib/language.js";
import "sinkgate/lib/zh.js";

learn("zh", {
  "Pages": "页面", "Theme": "主题", "Language": "语言", "Auto": "自动", "Light": "浅色", "Dark": "深色", "studio": "工作室", "report": "报告",
  "Skip to the page": "跳到页面", "Reading the record…": "正在读取记录…",
  "Served by sinkgate studio from this machine; nothing else is asked.": "由本机的 sinkgate studio 提供；不向别处请求任何内容。",
  "Written by sinkgate. This file is complete: it loads nothing and sends nothing.": "由 sinkgate 写成。本文件完整自足：不加载任何内容，也不发送任何内容。",
  "The server does not answer. Is sinkgate studio still running?": "服务器没有应答。sinkgate studio 还在运行吗？",
  "The server refused this ({status}).": "服务器拒绝了这一请求（{status}）。",
});
