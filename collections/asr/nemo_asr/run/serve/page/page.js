// The page: a file or the microphone in, words out. Texts from the server are set as text, never as HTML.

const TEXTS = {
  en: {
    model: "Model", api: "API", theme: "Light or dark", speak: "Speak", stop: "Stop", or: "or",
    open: "Open a recording", drop: "or drop it here: WAV, FLAC, MP3, OGG, Opus, …",
    keywords: "Hot words", keywordsHint: "names and terms, separated by commas", token: "Token", cancel: "Cancel",
    spoken: "Spoken language", asServed: "as the server is set", found: "found by the model", english: "Translate into English",
    transcript: "Transcript", unsure: "unsure", sure: "sure", copy: "Copy", copied: "Copied", copyByKey: "Press Ctrl-C",
    keys: "Click a word to hear it. Keys: R speak or stop, O open, ← → words, Enter play, Esc cancel.",
    local: "Everything stays between this page and this server.",
    ready: "Ready.", asking: "Waiting for the microphone …", listening: "Listening: {0}", finishing: "Finishing …",
    sending: "Sending {0}: {1} %", working: "Transcribing {0} …", done: "{0} s of audio, {1}, in {2} s.",
    heard: "{0} s of audio, {1}.", words: "{0} words", oneWord: "1 word", nothing: "No words were heard.", cancelled: "Cancelled.",
    noMicrophone: "The microphone cannot be used: {0}", insecure: "Browsers give the microphone to this machine's own address or HTTPS only.",
    lost: "The connection to the server was lost.", needsToken: "This server needs a token.", word: "{0}, {1} % sure, at {2} s",
  },
  zh: {
    model: "模型", api: "接口", theme: "浅色或深色", speak: "说话", stop: "停止", or: "或",
    open: "打开录音", drop: "或把文件拖到这里：WAV、FLAC、MP3、OGG、Opus……",
    keywords: "热词", keywordsHint: "人名与术语，用逗号分开", token: "令牌", cancel: "取消",
    spoken: "语音的语言", asServed: "按服务器的设置", found: "由模型判断", english: "翻译成英语",
    transcript: "文字", unsure: "不确定", sure: "确定", copy: "复制", copied: "已复制", copyByKey: "请按 Ctrl-C",
    keys: "点一个词可以听它。按键：R 说话或停止，O 打开，← → 移动，回车播放，Esc 取消。",
    local: "数据只在本页与此服务器之间传输。",
    ready: "就绪。", asking: "等待麦克风……", listening: "正在听：{0}", finishing: "正在收尾……",
    sending: "正在发送 {0}：{1} %", working: "正在转写 {0}……", done: "音频 {0} 秒，{1}，用时 {2} 秒。",
    heard: "音频 {0} 秒，{1}。", words: "{0} 个词", oneWord: "1 个词", nothing: "没有识别到词。", cancelled: "已取消。",
    noMicrophone: "无法使用麦克风：{0}", insecure: "浏览器只在本机地址或 HTTPS 下提供麦克风。",
    lost: "与服务器的连接断开了。", needsToken: "此服务器需要令牌。", word: "{0}，{1} % 确定，在 {2} 秒",
  },
};
const UNSURE = 0.5, SURE = 0.85;
const DRAWN_BYTES = 60e6; // larger files are transcribed, not drawn
// Filters for the ears of people take from a model what it was trained on.
const AUDIO = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true };
const CUE_SECONDS = 7, CUE_LETTERS = 84, CUE_GAP = 0.8;

const $ = (id) => document.getElementById(id);
const body = document.body;
const state = { language: "en", models: [], words: [], separator: " ", samples: null, rate: 16000, audio: null, name: "recording", run: null, mic: null };

// Language, theme, status.

function text(key, ...values) {
  return TEXTS[state.language][key].replace(/\{(\d)\}/g, (_, number) => values[number]);
}

function numberOfWords() {
  return text(state.words.length === 1 ? "oneWord" : "words", state.words.length);
}

function setLanguage(language) {
  state.language = language in TEXTS ? language : "en";
  localStorage.setItem("language", state.language);
  document.documentElement.lang = state.language;
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = text(node.dataset.text);
  for (const node of document.querySelectorAll("[data-placeholder]")) node.placeholder = text(node.dataset.placeholder);
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", text(node.dataset.label));
  $("language").textContent = state.language === "en" ? "中文" : "English";
  $("record-text").textContent = text(body.dataset.state === "listening" ? "stop" : "speak");
  if (body.dataset.state === "idle") $("status-text").textContent = text("ready");
  for (const node of $("transcript").querySelectorAll(".word")) describe(node);
  showTold();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  draw();
}

function setState(name, message, canCancel = false) {
  body.dataset.state = name;
  $("status-text").textContent = message;
  $("cancel").hidden = !canCancel;
  $("record").setAttribute("aria-pressed", String(name === "listening"));
  $("record-text").textContent = text(name === "listening" ? "stop" : "speak");
}

function token() {
  return $("token").value.trim();
}

function keywords() {
  return $("keywords").value.split(/[,，、\n]/).map((word) => word.trim()).filter(Boolean);
}

// What the chosen model can be told: the language that is spoken, and to translate.

function showTold() {
  const { languages = [], translates = false } = state.models.find((model) => model.id === $("model").value) || {};
  const chosen = $("spoken").value;
  const names = new Intl.DisplayNames([state.language], { type: "language" });
  const nameOf = (code) => {
    try { return `${names.of(code)} (${code})`; } catch { return code; } // no code of a language
  };
  const isAuto = languages.includes("auto");
  const others = languages.filter((code) => code !== "auto").map((code) => new Option(nameOf(code), code));
  others.sort((one, another) => one.text.localeCompare(another.text, state.language));
  $("spoken").replaceChildren(new Option(text("asServed"), ""), ...(isAuto ? [new Option(text("found"), "auto")] : []), ...others);
  $("spoken").value = languages.includes(chosen) ? chosen : "";
  $("spoken").disabled = !languages.length;
  $("english-label").hidden = !translates;
  $("english").checked &&= translates;
  $("told").hidden = !languages.length && !translates;
}

async function loadTold() {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  const answer = await fetch("v1/models", { headers }).catch(() => null); // a lost server is told elsewhere
  if (!answer?.ok) return;
  state.models = (await answer.json()).data;
  showTold();
}

// Transcript: words that can be clicked.

function clear() {
  state.words = [];
  $("transcript").replaceChildren();
  $("transcript-box").hidden = true; // until there is something to show
  $("player").pause();
  $("playhead").style.transform = "";
}

function reveal() {
  $("transcript-box").hidden = false;
}

function addWords(words) {
  if (words.length) reveal();
  const partial = $("transcript").querySelector(".partial");
  for (const word of words) {
    if (state.words.length) $("transcript").insertBefore(document.createTextNode(state.separator), partial);
    const node = document.createElement("span");
    node.className = `word ${word.confidence < UNSURE ? "c0" : word.confidence < SURE ? "c1" : "c2"}`;
    node.textContent = word.text;
    node.tabIndex = state.words.length ? -1 : 0;
    node.setAttribute("role", "button");
    node.dataset.number = state.words.length;
    state.words.push(word);
    describe(node);
    $("transcript").insertBefore(node, partial);
  }
}

function describe(node) {
  const word = state.words[node.dataset.number];
  node.title = text("word", word.text, Math.round(100 * word.confidence), word.start.toFixed(2));
}

function setPartial(content) {
  $("transcript").querySelector(".partial")?.remove();
  if (!content) return;
  reveal();
  const node = document.createElement("span");
  node.className = "partial";
  node.textContent = (state.words.length ? state.separator : "") + content;
  $("transcript").append(node);
}

function sayNothing() {
  if (state.words.length) return;
  reveal();
  const node = document.createElement("span");
  node.className = "nothing";
  node.textContent = text("nothing");
  $("transcript").replaceChildren(node);
}

function play(start) {
  const player = $("player");
  if (!player.src) return;
  player.currentTime = start;
  player.play().catch(() => {});
}

function followPlayer() {
  const player = $("player");
  const now = player.currentTime;
  const duration = audioSeconds();
  if (duration) $("playhead").style.transform = `translateX(${(now / duration) * $("picture").clientWidth}px)`;
  for (const node of $("transcript").querySelectorAll(".word")) {
    const word = state.words[node.dataset.number];
    node.classList.toggle("now", !player.paused && word.start <= now && now < word.end);
  }
  if (!player.paused) requestAnimationFrame(followPlayer);
}

function audioSeconds() {
  return state.samples ? state.samples.length / state.rate : 0;
}

// A file.

async function transcribeFile(file) {
  if (state.mic) await stopMicrophone(false);
  cancel(true);
  clear();
  state.name = file.name.replace(/\.[^.]*$/, "") || "recording";
  setAudio(file);
  const run = new XMLHttpRequest();
  state.run = run;
  const started = performance.now();
  drawFile(file);
  const form = new FormData();
  form.append("file", file, file.name);
  form.append("model", $("model").value);
  form.append("response_format", "verbose_json");
  form.append("timestamp_granularities[]", "word");
  form.append("timestamp_granularities[]", "segment");
  form.append("language", $("spoken").value);
  for (const word of keywords()) form.append("keywords[]", word);
  run.open("POST", $("english").checked ? "v1/audio/translations" : "v1/audio/transcriptions");
  if (token()) run.setRequestHeader("Authorization", `Bearer ${token()}`);
  run.upload.onprogress = (event) => {
    const share = Math.floor((100 * event.loaded) / event.total);
    setState("working", share < 100 ? text("sending", file.name, share) : text("working", file.name), true);
  };
  run.onload = () => {
    if (state.run !== run) return;
    state.run = null;
    let answer = {};
    try { answer = JSON.parse(run.responseText); } catch { /* told below */ }
    if (run.status !== 200) {
      if (run.status === 401) askForToken();
      return fail(answer.error?.message || `${run.status} ${run.statusText}`);
    }
    const words = answer.words.map(({ word, ...times }) => ({ text: word, ...times })); // OpenAI's name; streams say text
    state.separator = words.length > 1 && words.map((word) => word.text).join("") === answer.text ? "" : " ";
    addWords(words);
    sayNothing();
    const took = ((performance.now() - started) / 1000).toFixed(1);
    setState("idle", text("done", answer.duration.toFixed(1), numberOfWords(), took));
  };
  run.onerror = () => {
    if (state.run !== run) return;
    state.run = null;
    fail(text("lost"));
  };
  setState("working", text("sending", file.name, 0), true);
  run.send(form);
}

// The message alone: no player and no picture of a file that has no text.
function fail(message) {
  setAudio(null);
  state.samples = null;
  draw();
  setState("error", message);
}

function cancel(silently = false) {
  if (state.run) {
    const run = state.run;
    state.run = null;
    run.abort();
    if (!silently) setState("idle", text("cancelled"));
  }
}

function setAudio(blob) {
  state.audio = blob;
  const player = $("player");
  if (player.src) URL.revokeObjectURL(player.src);
  player.removeAttribute("src");
  if (blob) player.src = URL.createObjectURL(blob);
  player.hidden = !blob;
}

async function drawFile(file) {
  state.samples = null;
  $("picture").hidden = true;
  if (file.size > DRAWN_BYTES) return;
  try {
    const context = new OfflineAudioContext(1, 1, 16000);
    const audio = await context.decodeAudioData(await file.arrayBuffer());
    if (state.audio !== file) return; // refused, or another one has come
    [state.samples, state.rate] = [audio.getChannelData(0), audio.sampleRate];
    draw();
  } catch { /* a format that the server reads and the browser does not */ }
}

// The microphone.

async function startMicrophone() {
  cancel(true);
  if (!navigator.mediaDevices) return setState("error", text("insecure"));
  setState("working", text("asking"));
  clear();
  setAudio(null);
  state.name = "microphone";
  const mic = { blocks: [], length: 0 };
  state.mic = mic;
  try {
    mic.context = await audioContext({ sampleRate: 16000 }); // first, so that nothing waits while the microphone is on
    mic.media = await navigator.mediaDevices.getUserMedia({ audio: AUDIO });
    try {
      mic.source = mic.context.createMediaStreamSource(mic.media);
    } catch { // Firefox connects a microphone at its own rate only; the server resamples
      mic.context.close();
      mic.context = await audioContext();
      mic.source = mic.context.createMediaStreamSource(mic.media);
    }
    if (state.mic !== mic) return release(mic); // stopped while the browser was asking
  } catch (error) {
    if (state.mic === mic) setState("error", text("noMicrophone", error.message || error.name));
    return release(mic);
  }
  state.rate = mic.context.sampleRate;
  mic.taker = new AudioWorkletNode(mic.context, "taker");
  mic.taker.port.onmessage = (event) => takeBlock(mic, event.data);
  mic.source.connect(mic.taker); // what is said before the socket is open waits in mic.blocks
  mic.socket = new WebSocket(new URL("v1/stream", location.href).href.replace(/^http/, "ws"));
  mic.socket.onopen = () => {
    const told = { model: $("model").value, language: $("spoken").value, task: $("english").checked ? "translate" : "" };
    const start = { type: "start", sample_rate: state.rate, ...told, keywords: keywords(), token: token() };
    mic.socket.send(JSON.stringify(start));
    for (const block of mic.blocks) mic.socket.send(integersOf(block));
    if (mic.hasEnded) sendStop(mic);
    else setState("listening", text("listening", "0:00"));
  };
  mic.socket.onmessage = (event) => takeMessage(mic, JSON.parse(event.data));
  mic.socket.onclose = () => {
    if (state.mic !== mic) return;
    release(mic);
    if (body.dataset.state !== "error") setState("error", text("lost"));
  };
}

async function audioContext(options) {
  const context = new AudioContext(options);
  await context.audioWorklet.addModule("page/worklet.js");
  return context;
}

function takeBlock(mic, samples) {
  if (samples === null) { // the last one was sent
    mic.hasEnded = true;
    if (mic.socket.readyState === WebSocket.OPEN) sendStop(mic);
    return;
  }
  mic.blocks.push(samples);
  mic.length += samples.length;
  if (mic.socket.readyState === WebSocket.OPEN) mic.socket.send(integersOf(samples));
  const seconds = Math.floor(mic.length / state.rate);
  if (body.dataset.state === "listening") {
    $("status-text").textContent = text("listening", `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`);
  }
  drawSoon(mic);
}

function sendStop(mic) {
  mic.socket.send(JSON.stringify({ type: "stop" }));
}

function integersOf(samples) {
  return Int16Array.from(samples, (value) => Math.max(-32768, Math.min(32767, Math.round(value * 32768)))).buffer;
}

function takeMessage(mic, message) {
  if (state.mic !== mic) return;
  if (message.type === "partial") setPartial(message.text);
  if (message.type === "final") {
    setPartial("");
    state.separator = message.words.length > 1 && message.words.map((word) => word.text).join("") === message.text ? "" : state.separator;
    addWords(message.words);
  }
  if (message.type === "error") {
    if (/token/.test(message.message)) askForToken();
    setState("error", message.message);
  }
  if (message.type === "done") {
    setPartial("");
    release(mic);
    state.samples = joined(mic);
    setAudio(wavOf(state.samples, state.rate));
    draw();
    sayNothing();
    setState("idle", text("heard", audioSeconds().toFixed(1), numberOfWords()));
  }
}

async function stopMicrophone(isWanted = true) {
  const mic = state.mic;
  if (!mic?.taker || !isWanted) {
    if (mic) release(mic);
    if (isWanted) setState("idle", text("cancelled"));
    return;
  }
  setState("working", text("finishing"));
  mic.source.disconnect();
  mic.taker.port.postMessage("end");
}

function release(mic) {
  if (state.mic === mic) state.mic = null;
  for (const track of mic.media?.getTracks() || []) track.stop();
  if (mic.context?.state !== "closed") mic.context?.close();
  if (mic.socket?.readyState <= WebSocket.OPEN) mic.socket.close();
}

function joined(mic) {
  const samples = new Float32Array(mic.length);
  let at = 0;
  for (const block of mic.blocks) {
    samples.set(block, at);
    at += block.length;
  }
  return samples;
}

function wavOf(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (at, letters) => [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF"); view.setUint32(4, 36 + 2 * samples.length, true); write(8, "WAVEfmt ");
  view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, rate, true); view.setUint32(28, 2 * rate, true); view.setUint16(32, 2, true); view.setUint16(34, 16, true);
  write(36, "data"); view.setUint32(40, 2 * samples.length, true);
  new Uint8Array(view.buffer, 44).set(new Uint8Array(integersOf(samples)));
  return new Blob([view], { type: "audio/wav" });
}

// Waveform and spectrogram: a column of each pixel, so that an hour costs as much as a second.

let drawTimer = 0;

function drawSoon(mic) {
  if (drawTimer) return;
  drawTimer = setTimeout(() => {
    drawTimer = 0;
    if (state.mic !== mic) return;
    const wanted = 12 * state.rate;
    const blocks = mic.blocks.slice(-Math.ceil(wanted / mic.blocks[0].length));
    state.samples = joined({ blocks, length: blocks.reduce((sum, block) => sum + block.length, 0) });
    draw(wanted);
  }, 150);
}

function draw(least = 0) {
  const samples = state.samples;
  $("picture").hidden = !samples;
  if (!samples) return;
  const style = getComputedStyle(document.documentElement);
  const length = Math.max(least, samples.length);
  drawWave(samples, length, style.getPropertyValue("--accent"));
  drawSpectrogram(samples, length, document.documentElement.dataset.theme === "dark");
}

function sized(canvas) {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const height = canvas.getAttribute("data-height") || canvas.getAttribute("height");
  canvas.dataset.height = height;
  canvas.style.height = `${height}px`;
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  canvas.height = Math.round(height * ratio);
  return canvas.getContext("2d");
}

function drawWave(samples, length, colour) {
  const context = sized($("wave"));
  const { width, height } = context.canvas;
  context.fillStyle = colour;
  let peak = 0.02;
  const columns = [];
  for (let x = 0; x < width; x++) {
    let [low, high] = [0, 0];
    const end = Math.min(samples.length, Math.ceil(((x + 1) * length) / width));
    const first = Math.floor((x * length) / width);
    const step = Math.max(1, Math.floor((end - first) / 400));
    for (let i = first; i < end; i += step) {
      low = Math.min(low, samples[i]);
      high = Math.max(high, samples[i]);
    }
    peak = Math.max(peak, -low, high);
    columns.push([low, high]);
  }
  columns.forEach(([low, high], x) => {
    const top = (0.5 - (0.46 * high) / peak) * height;
    context.fillRect(x, top, 1, Math.max(1, ((0.46 * (high - low)) / peak) * height));
  });
}

const SIZE = 512;
const WINDOW = Float32Array.from({ length: SIZE }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / SIZE));

function drawSpectrogram(samples, length, isDark) {
  const context = sized($("spectrogram"));
  const { width, height } = context.canvas;
  const image = context.createImageData(width, height);
  const [real, imaginary] = [new Float32Array(SIZE), new Float32Array(SIZE)];
  for (let x = 0; x < width; x++) {
    const first = Math.floor(((x + 0.5) * length) / width) - SIZE / 2;
    if (first > samples.length) break;
    for (let i = 0; i < SIZE; i++) {
      real[i] = (samples[first + i] || 0) * WINDOW[i];
      imaginary[i] = 0;
    }
    transform(real, imaginary);
    for (let y = 0; y < height; y++) {
      const bin = Math.floor(((height - 1 - y) / height) ** 1.4 * (SIZE / 2)); // more room for low frequencies
      const level = 10 * Math.log10(real[bin] ** 2 + imaginary[bin] ** 2 + 1e-9);
      const share = Math.max(0, Math.min(1, (level + 35) / 65));
      const at = 4 * (y * width + x);
      image.data.set(isDark ? shade(share, [28, 34, 38], [66, 160, 170], [255, 236, 190]) : shade(share, [255, 255, 255], [96, 172, 178], [16, 48, 66]), at);
    }
  }
  context.putImageData(image, 0, 0);
}

function shade(share, low, middle, high) {
  const [from, to, part] = share < 0.5 ? [low, middle, 2 * share] : [middle, high, 2 * share - 1];
  return [...from.map((value, i) => value + part * (to[i] - value)), 255];
}

// In place; Cooley and Tukey's algorithm for a power of two.
function transform(real, imaginary) {
  const n = real.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [real[i], real[j]] = [real[j], real[i]];
      [imaginary[i], imaginary[j]] = [imaginary[j], imaginary[i]];
    }
  }
  for (let size = 2; size <= n; size <<= 1) {
    const angle = (-2 * Math.PI) / size;
    for (let start = 0; start < n; start += size) {
      for (let k = 0; k < size / 2; k++) {
        const [cos, sin] = [Math.cos(angle * k), Math.sin(angle * k)];
        const [a, b] = [start + k, start + k + size / 2];
        const [re, im] = [real[b] * cos - imaginary[b] * sin, real[b] * sin + imaginary[b] * cos];
        [real[b], imaginary[b]] = [real[a] - re, imaginary[a] - im];
        [real[a], imaginary[a]] = [real[a] + re, imaginary[a] + im];
      }
    }
  }
}

// Downloads.

function cues() {
  const groups = [];
  for (const word of state.words) {
    const group = groups.at(-1);
    const letters = group ? group.reduce((sum, other) => sum + other.text.length + 1, 0) + word.text.length : 0;
    const fits = group && word.start - group.at(-1).end <= CUE_GAP && word.end - group[0].start <= CUE_SECONDS && letters <= CUE_LETTERS;
    if (fits) group.push(word);
    else groups.push([word]);
  }
  return groups.map((words) => ({ start: words[0].start, end: words.at(-1).end, text: words.map((word) => word.text).join(state.separator) }));
}

function clock(seconds, point) {
  const thousandths = Math.round(seconds * 1000);
  const part = (size, modulus, digits) => String(Math.floor(thousandths / size) % modulus).padStart(digits, "0");
  return `${part(3600000, 1e6, 2)}:${part(60000, 60, 2)}:${part(1000, 60, 2)}${point}${part(1, 1000, 3)}`;
}

function plainText() {
  return state.words.map((word) => word.text).join(state.separator);
}

const DOWNLOADS = {
  srt: () => cues().map((cue, i) => `${i + 1}\n${clock(cue.start, ",")} --> ${clock(cue.end, ",")}\n${cue.text}\n`).join("\n"),
  vtt: () => "WEBVTT\n" + cues().map((cue) => `\n${clock(cue.start, ".")} --> ${clock(cue.end, ".")}\n${cue.text.replace(/&/g, "&amp;").replace(/</g, "&lt;")}\n`).join(""),
  json: () => JSON.stringify({ text: plainText(), words: state.words }, null, 1),
};

function download(kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([DOWNLOADS[kind]()], { type: "text/plain;charset=utf-8" }));
  link.download = `${state.name}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Start.

function askForToken() {
  $("token").hidden = $("token-label").hidden = false;
  $("token").focus();
}

async function loadModels() {
  try {
    const health = await (await fetch("health")).json();
    $("model").replaceChildren(...health.models.map((name) => new Option(name, name)));
    document.querySelector(".model").hidden = false;
    if (health.token_needed) {
      askForToken();
      setState("idle", text("needsToken"));
    }
    if (!health.token_needed || token()) await loadTold();
  } catch {
    setState("error", text("lost"));
  }
}

const toggleMicrophone = () => (state.mic ? stopMicrophone() : startMicrophone());

$("record").onclick = toggleMicrophone;
$("open").onclick = () => $("file").click();
$("cancel").onclick = () => cancel();
$("file").onchange = () => {
  if ($("file").files[0]) transcribeFile($("file").files[0]);
  $("file").value = "";
};
$("language").onclick = () => setLanguage(state.language === "en" ? "zh" : "en");
$("theme").onclick = () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", theme);
  setTheme(theme);
};
$("copy").onclick = async () => {
  let told = "copied";
  try {
    await navigator.clipboard.writeText(plainText());
  } catch { // over HTTP from another machine there is no clipboard
    getSelection().selectAllChildren($("transcript"));
    told = "copyByKey";
  }
  $("copy").textContent = text(told);
  setTimeout(() => ($("copy").textContent = text("copy")), 1500);
};
$("token").onchange = () => {
  sessionStorage.setItem("token", token());
  loadTold();
};
$("model").onchange = showTold;
for (const button of document.querySelectorAll("[data-download]")) button.onclick = () => download(button.dataset.download);
$("transcript").onclick = (event) => {
  const number = event.target.dataset?.number;
  if (number !== undefined) play(state.words[number].start);
};
$("picture").onclick = (event) => play((event.offsetX / $("picture").clientWidth) * audioSeconds());
$("player").onplay = $("player").onseeked = $("player").onpause = followPlayer;

for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.add("over");
  });
}
for (const kind of ["dragleave", "drop"]) document.addEventListener(kind, () => $("drop").classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files[0]) transcribeFile(event.dataTransfer.files[0]);
});
document.addEventListener("keydown", (event) => {
  const target = event.target;
  if (event.key === "Escape") return state.mic ? stopMicrophone() : cancel();
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(target.tagName)) return;
  if (event.key === "r" || event.key === "R") return toggleMicrophone();
  if (event.key === "o" || event.key === "O") return $("file").click();
  if (target.classList.contains("word")) {
    const number = Number(target.dataset.number);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      const next = $("transcript").querySelector(`[data-number="${number + step}"]`);
      if (next) {
        target.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
    }
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      play(state.words[number].start);
    }
  }
});
window.addEventListener("resize", () => draw(state.mic ? 12 * state.rate : 0));
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  if (!localStorage.getItem("theme")) setTheme(event.matches ? "dark" : "light");
});

$("token").value = sessionStorage.getItem("token") || "";
setTheme(localStorage.getItem("theme") || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
const wanted = new URLSearchParams(location.search).get("lang") || localStorage.getItem("language") || navigator.language;
setLanguage(wanted.startsWith("zh") ? "zh" : "en");
loadModels();
