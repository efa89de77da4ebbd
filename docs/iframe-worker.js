// A browser starts no worker for a page that it has read from a file. This runs the site's search in
// a hidden frame instead, which has the two calls that a worker has.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true });
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.tell(this, data); // the worker's answers
      const script = this.inner.document.createElement("script");
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      script.src = url;
      this.inner.document.body.append(script);
    }

    async postMessage(data) {
      await this.loaded;
      this.tell(this.inner, data);
    }

    tell(target, data) {
      const event = new MessageEvent("message", { data });
      target.dispatchEvent(event);
      if (target === this) this.onmessage?.(event);
    }
  };
}
