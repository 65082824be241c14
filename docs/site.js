// Search on pages opened from a folder: browsers start no worker there, so its program runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.documentElement.append(frame);
      this.inner = frame.contentWindow;
      this.waiting = [];
      addEventListener("message", (event) => {
        if (event.source === this.inner) this.dispatchEvent(new MessageEvent("message", {data: event.data}));
      });
      const page = this.inner.document;
      page.open();
      page.write("<script>postMessage = parent.postMessage.bind(parent)</" + "script>");
      page.close();
      const program = page.createElement("script");
      program.src = url;
      program.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      };
      page.head.append(program);
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inner.dispatchEvent(new MessageEvent("message", {data}));
    }
    terminate() {}
  };
}
// Wide tables scroll by themselves; the keyboard has to reach them.
new MutationObserver(() => {
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((table) => {
    table.tabIndex = 0;
  });
}).observe(document.documentElement, {childList: true, subtree: true});
