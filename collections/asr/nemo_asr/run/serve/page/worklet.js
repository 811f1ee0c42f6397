// Hands blocks of a tenth of a second from the microphone to the page.
class Taker extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Float32Array(Math.round(sampleRate / 10));
    this.filled = 0;
    this.port.onmessage = () => {
      this.port.postMessage(this.block.slice(0, this.filled));
      this.port.postMessage(null);
      this.filled = 0;
    };
  }

  process(inputs) {
    const samples = inputs[0][0];
    for (const sample of samples || []) {
      this.block[this.filled++] = sample;
      if (this.filled === this.block.length) {
        this.port.postMessage(this.block.slice());
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("taker", Taker);
