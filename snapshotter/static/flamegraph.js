/* The explorable flame graph: one merged tree of all ranks, root on top, a set of ranks on every frame.
 *
 * Data (see snapshotter/render/graph.py): groups of one sample, role and thread, each a prefix tree in columns:
 * parent[i] (index or -1), frame[i] (into frames), self[i] (into sets: the ranks whose stack ends there).
 * A set of ranks is a sorted flat list of inclusive ranges, [0,39,48,63]: few ranges, however many ranks.
 */
(() => {
  "use strict";

  // ---- sets of ranks -------------------------------------------------------------------------------------
  const NONE = [];
  function parseRanks(text) {
    const ranges = [];
    for (const part of text.split(/[\s,/]+/)) {
      if (!part) continue;
      const found = /^(\d{1,7})(?:-(\d{1,7}))?$/.exec(part);
      if (!found) throw new Error(`“${part}” is not a rank; write 0-7/12`);
      const low = Number(found[1]), high = found[2] === undefined ? low : Number(found[2]);
      if (high < low) throw new Error(`“${part}” runs backwards; write ${high}-${low}`);
      ranges.push([low, high]);
    }
    return normal(ranges);
  }
  function normal(pairs) {
    pairs.sort((a, b) => a[0] - b[0]);
    const out = [];
    for (const [low, high] of pairs) {
      const last = out.length - 1;
      if (last > 0 && low <= out[last] + 1) { if (high > out[last]) out[last] = high; }
      else out.push(low, high);
    }
    return out;
  }
  function union(sets) {
    const full = sets.filter((set) => set.length);
    if (full.length < 2) return full[0] || NONE;
    const pairs = [];
    for (const set of full) for (let i = 0; i < set.length; i += 2) pairs.push([set[i], set[i + 1]]);
    return normal(pairs);
  }
  function both(a, b) {
    const out = [];
    for (let i = 0, j = 0; i < a.length && j < b.length;) {
      const low = Math.max(a[i], b[j]), high = Math.min(a[i + 1], b[j + 1]);
      if (low <= high) out.push(low, high);
      if (a[i + 1] < b[j + 1]) i += 2; else j += 2;
    }
    return out;
  }
  function without(a, b) {
    const out = [];
    let j = 0;
    for (let i = 0; i < a.length; i += 2) {
      let low = a[i];
      const high = a[i + 1];
      while (j < b.length && b[j + 1] < low) j += 2;
      for (let k = j; low <= high; k += 2) {
        if (k >= b.length || b[k] > high) { out.push(low, high); break; }
        if (b[k] > low) out.push(low, b[k] - 1);
        low = b[k + 1] + 1;
      }
    }
    return out;
  }
  function count(set) {
    let n = 0;
    for (let i = 0; i < set.length; i += 2) n += set[i + 1] - set[i] + 1;
    return n;
  }
  function fold(set) {
    const parts = [];
    for (let i = 0; i < set.length; i += 2) parts.push(set[i] === set[i + 1] ? `${set[i]}` : `${set[i]}-${set[i + 1]}`);
    return parts.join("/");
  }

  // ---- the tree under the filters ------------------------------------------------------------------------
  /* A node: {name, path, thread, role, total, value, classes, self, children, parent, depth, of}; `of` is the set
     of captured ranks it is a share of. */
  const OUTLIER_SHARE = 0.25;

  function keepRanks(selves, of, filter, onlyOutliers) {
    let kept = selves.map((set) => (set.length ? both(set, filter) : NONE));
    if (onlyOutliers) {
      const captured = count(both(of, filter));
      const largest = Math.max(0, ...kept.map(count));
      kept = kept.map((set) => {
        const n = count(set);
        return n === largest || n > OUTLIER_SHARE * captured ? NONE : set;
      });
    }
    return kept;
  }

  function groupTree(data, group, filter, onlyOutliers) {
    const of = both(data.sets[group.captured], filter);
    const selves = keepRanks(group.self.map((s) => (s < 0 ? NONE : data.sets[s])), data.sets[group.captured], filter, onlyOutliers);
    const nodes = group.frame.map((frame, i) => {
      const [name, path] = data.frames[frame];
      return { name: data.strings[name], path: data.strings[path], thread: group.thread, role: group.role, of,
               self: selves[i], parts: [selves[i]], children: [], classes: 0, value: 0 };
    });
    const root = { name: group.thread, path: "", thread: group.thread, role: group.role, of, self: NONE, parts: [], children: [], classes: 0, value: 0, isThread: true };
    for (let i = nodes.length - 1; i >= 0; i--) { // parents come before children
      const node = nodes[i];
      node.total = union(node.parts);
      node.value += count(node.self);
      node.classes += node.self.length ? 1 : 0;
      if (!node.total.length) continue;
      const parent = group.parent[i] < 0 ? root : nodes[group.parent[i]];
      parent.parts.push(node.total);
      parent.children.push(node);
      parent.value += node.value;
      parent.classes += node.classes;
    }
    root.total = union(root.parts);
    return root;
  }

  function buildTree(data, view) {
    const groups = data.groups.filter((g) => g.sample === view.sample
      && (view.role === "" || g.role === view.role) && (view.thread === "" || g.thread === view.thread));
    const roots = groups.map((g) => groupTree(data, g, view.filter, view.outliers)).filter((r) => r.total.length);
    const top = { name: "all ranks", path: "", thread: "", role: "", self: NONE, children: [], isTop: true,
                  of: both(data.captured, view.filter), total: union(roots.map((r) => r.total)),
                  value: roots.reduce((n, r) => n + r.value, 0), classes: roots.reduce((n, r) => n + r.classes, 0) };
    const roles = new Map();
    for (const root of roots) {
      if (!roles.has(root.role)) roles.set(root.role, []);
      roles.get(root.role).push(root);
    }
    for (const [role, threads] of roles) {
      if (roles.size === 1) { top.children = threads; top.name = role; top.of = threads[0].of; break; }
      top.children.push({ name: role, path: "", thread: "", role, self: NONE, children: threads, isRole: true, of: threads[0].of,
                          total: union(threads.map((t) => t.total)), value: threads.reduce((n, t) => n + t.value, 0),
                          classes: threads.reduce((n, t) => n + t.classes, 0) });
    }
    finish(top, null, 0);
    return top;
  }

  function finish(node, parent, depth) {
    node.parent = parent;
    node.depth = depth;
    node.children.sort((a, b) => a.value - b.value || (a.name < b.name ? -1 : 1)); // the rare ones first
    for (const child of node.children) finish(child, node, depth + 1);
  }

  function shareClass(node) {
    const share = count(node.total) / Math.max(1, count(node.of));
    if (share >= 0.9) return "s-most";
    if (share >= 0.5) return "s-half";
    if (share >= 0.25) return "s-some";
    if (share >= 0.05) return "s-few";
    return "s-rare";
  }

  // ---- text ----------------------------------------------------------------------------------------------
  const plural = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
  const isFrame = (node) => !node.isTop && !node.isRole && !node.isThread;
  function escapeLabel(text) { // as stacks/tree.py does, so that every label parses again
    const hex = (c, digits) => `%${c.codePointAt(0).toString(16).toUpperCase().padStart(digits, "0")}`;
    return text.replace(/[%;@|\u0000-\u001f\u007f]/g, (c) => hex(c, 2)).replace(/[\u0085\u2028\u2029]/g, (c) => hex(c, 4));
  }
  function frameLabel(node) {
    const parts = [node.thread, node.name, node.path].map((part) => escapeLabel(part || "unknown"));
    return `${parts.join("@")}@${fold(node.total)}|${fold(without(node.of, node.total))}`;
  }
  function seen(text) { // what would hide or turn the text around is spelt out, as render/words.py does
    return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g,
      (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
  }
  function shortPath(path) {
    const parts = path.split("/");
    return parts.length > 3 ? parts.slice(-2).join("/") : path;
  }
  function clip(text, most) { return text.length > most ? `${text.slice(0, most)}…` : text; }

  // ---- the page ------------------------------------------------------------------------------------------
  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "class") element.className = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }
  function field(label, control) {
    control.id = control.id || `fg-${label.toLowerCase().replace(/\W+/g, "-")}`;
    return make("div", { class: "field" }, make("label", { for: control.id }, label), control);
  }
  function select(options, value) {
    const control = make("select", {});
    for (const [key, text] of options) control.append(make("option", { value: key }, text));
    control.value = value;
    if (control.selectedIndex < 0) control.selectedIndex = 0;
    return control;
  }
  async function copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", { class: "sr-only" }); // no clipboard without https: the old way
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 2000);
  }

  const ROW = 22, MIN_SHARE = 0.004, MAX_FRAMES = 6000;

  function start(host, raw) {
    const data = prepare(raw);
    const wanted = new URLSearchParams(location.hash.slice(1));
    const samples = [...new Set(data.groups.map((g) => g.sample))].sort();
    const roles = [...new Set(data.groups.map((g) => g.role))];
    const view = { sample: Number(wanted.get("sample") ?? samples[samples.length - 1] ?? 0), role: wanted.get("role") ?? (roles.includes("trainer") ? "trainer" : ""),
                   thread: wanted.get("thread") ?? "", ranks: wanted.get("ranks") ?? "", node: wanted.get("node") ?? "",
                   outliers: wanted.get("outliers") === "1", width: wanted.get("width") ?? "", filter: data.known };
    if (!wanted.has("thread") && data.groups.some((g) => g.thread === "MainThread" && (view.role === "" || g.role === view.role))) view.thread = "MainThread";
    let tree = null, zoom = null, chosen = null, matches = null, shown = [];
    const past = [];

    // Controls
    const sampleSelect = select(samples.map((s) => [String(s), data.sampleNames[s] || `sample ${s + 1}`]), String(view.sample));
    const roleSelect = select([["", "all roles"], ...roles.map((r) => [r, r])], view.role);
    const threadSelect = make("select", {});
    const nodeSelect = select([["", "all nodes"], ...data.hosts.map(([name]) => [name, seen(name)])], view.node);
    const ranksInput = make("input", { type: "text", placeholder: "0-7/12", autocomplete: "off", spellcheck: "false", "aria-describedby": "fg-status" });
    ranksInput.value = view.ranks;
    const searchInput = make("input", { type: "search", placeholder: "function or file", autocomplete: "off", spellcheck: "false" });
    const outliersBox = make("input", { type: "checkbox", id: "fg-outliers" });
    outliersBox.checked = view.outliers;
    const byRanks = make("input", { type: "radio", name: "fg-width", id: "fg-width-ranks", value: "ranks" });
    const byClass = make("input", { type: "radio", name: "fg-width", id: "fg-width-class", value: "class" });
    const back = make("button", { type: "button", onclick: goBack }, "Back");
    const whole = make("button", { type: "button", onclick: () => zoomTo(tree) }, "Whole graph");
    const status = make("p", { class: "fg-status", id: "fg-status", role: "status" });
    const graph = make("div", { class: "fg", role: "tree", "aria-label": "Merged stacks, root on top" });
    const tip = make("div", { class: "fg-tip", hidden: true, "aria-hidden": "true" });
    const detail = make("section", { class: "fg-detail", "aria-label": "Chosen frame", hidden: true });
    const legend = make("ul", { class: "fg-legend", "aria-label": "Colours: share of the captured ranks" });
    for (const [name, text] of [["s-rare", "under 5% of ranks"], ["s-few", "5–25%"], ["s-some", "25–50%"], ["s-half", "50–90%"], ["s-most", "90% and more"]])
      legend.append(make("li", {}, make("i", { class: name }), text));

    const tools = make("div", { class: "fg-tools", role: "group", "aria-label": "Filters" });
    if (samples.length > 1) tools.append(field("Sample", sampleSelect));
    tools.append(
      field("Process type", roleSelect), field("Thread", threadSelect), field("Ranks", ranksInput), field("Node", nodeSelect), field("Search", searchInput),
      make("fieldset", {}, make("legend", {}, "Width"),
        make("label", { class: "check", for: "fg-width-ranks" }, byRanks, "ranks"),
        make("label", { class: "check", for: "fg-width-class" }, byClass, "equal per class")),
      make("label", { class: "check", for: "fg-outliers" }, outliersBox, "only outliers"),
      make("div", { class: "actions fg-nav" }, back, whole));
    host.replaceChildren(tools, status, legend, graph, detail, tip);

    // Changing the view
    function threadsOf(role) {
      return [...new Set(data.groups.filter((g) => role === "" || g.role === role).map((g) => g.thread))];
    }
    function fillThreads() {
      const threads = threadsOf(view.role);
      threadSelect.replaceChildren(make("option", { value: "" }, `all threads (${threads.length})`), ...threads.map((t) => make("option", { value: t }, clip(seen(t), 80))));
      if (!threads.includes(view.thread)) view.thread = "";
      threadSelect.value = view.thread;
    }
    function readFilter() {
      let filter = data.known;
      if (view.node) filter = both(filter, (data.hosts.find(([name]) => name === view.node) || ["", NONE])[1]);
      if (view.ranks.trim()) filter = both(filter, parseRanks(view.ranks));
      return filter;
    }
    function rebuild() {
      try {
        view.filter = readFilter();
        ranksInput.removeAttribute("aria-invalid");
      } catch (error) {
        ranksInput.setAttribute("aria-invalid", "true");
        status.replaceChildren(make("span", { class: "fg-error" }, error.message));
        return;
      }
      tree = buildTree(data, view);
      zoom = tree;
      past.length = 0;
      chosen = null;
      detail.hidden = true;
      if (!view.width) {
        const smallest = smallestClass(tree);
        view.auto = smallest < 0.02 ? "class" : "ranks";
      }
      search();
      remember();
    }
    function readOf(role, sample) { // ranks with stacks, of one sample or (null) of any
      return union(data.groups.filter((g) => (role === "" || g.role === role) && (sample === null || g.sample === sample)).map((g) => data.sets[g.captured]));
    }
    function smallestClass(node) {
      let least = node.self.length ? count(node.self) / Math.max(1, count(node.of)) : 1;
      for (const child of node.children) least = Math.min(least, smallestClass(child));
      return least;
    }
    const mode = () => view.width || view.auto || "ranks";
    function remember() {
      const state = new URLSearchParams();
      for (const name of ["role", "thread", "ranks", "node", "width"]) if (view[name] || name === "role" || name === "thread") state.set(name, view[name]);
      if (view.outliers) state.set("outliers", "1");
      if (samples.length > 1) state.set("sample", view.sample);
      history.replaceState(null, "", `#${state}`);
    }
    function search() {
      const text = searchInput.value.trim().toLowerCase();
      matches = null;
      if (text && tree) {
        matches = new Set();
        (function visit(node) {
          if (`${node.name} ${node.path}`.toLowerCase().includes(text)) matches.add(node);
          node.children.forEach(visit);
        })(tree);
      }
      draw();
    }
    function zoomTo(node) {
      if (!node || node === zoom) return;
      past.push(zoom);
      zoom = node;
      draw();
      focusOn(node);
    }
    function goBack() {
      if (!past.length) return;
      const from = zoom;
      zoom = past.pop();
      draw();
      focusOn(from);
    }

    // Drawing
    function weight(node) { return mode() === "class" ? node.classes : node.value; }
    function layout() {
      const placed = [];
      const line = [];
      for (let node = zoom.parent; node; node = node.parent) line.unshift(node);
      for (const node of line) placed.push({ node, left: 0, width: 1, above: true });
      const queue = [{ node: zoom, left: 0, width: 1 }];
      while (queue.length) { // breadth first: a limit cuts the deepest frames
        const place = queue.shift();
        placed.push(place);
        const children = place.node.children;
        if (!children.length || placed.length + queue.length > MAX_FRAMES) continue;
        const all = Math.max(weight(place.node), 1);
        const shares = children.map((child) => Math.max(weight(child) / all, MIN_SHARE));
        const sum = shares.reduce((a, b) => a + b, 0);
        const scale = sum > 1 ? 1 / sum : 1;
        let left = place.left;
        children.forEach((child, i) => {
          const width = place.width * shares[i] * scale;
          if (width > 0.0004) queue.push({ node: child, left, width });
          left += width;
        });
      }
      return placed;
    }
    function draw() {
      hideTip();
      shown = layout();
      const pixels = graph.clientWidth || 1000;
      const deepest = shown.reduce((most, place) => Math.max(most, place.node.depth), 0);
      graph.style.height = `${(deepest + 1) * ROW}px`;
      const elements = shown.map((place) => {
        const { node } = place;
        const wide = place.width * pixels;
        const element = document.createElement("div");
        element.className = `fg-frame ${shareClass(node)}${place.above ? " above" : ""}${matches && !matches.has(node) ? " dimmed" : ""}${wide < 24 ? " narrow" : ""}${node === chosen ? " chosen" : ""}`;
        element.style.left = `${place.left * 100}%`;
        element.style.width = `${place.width * 100}%`;
        element.style.top = `${node.depth * ROW}px`;
        element.setAttribute("role", "treeitem");
        element.setAttribute("aria-level", node.depth + 1);
        element.setAttribute("aria-label", spoken(node));
        element.setAttribute("aria-selected", node === chosen);
        if (node.children.length) element.setAttribute("aria-expanded", "true");
        element.tabIndex = -1;
        if (wide >= 24) element.textContent = caption(node, wide);
        element.place = place;
        place.element = element;
        return element;
      });
      graph.replaceChildren(...elements);
      const holder = shown.find((place) => place.node === (chosen || zoom)) || shown[0];
      if (holder) holder.element.tabIndex = 0;
      byRanks.checked = mode() === "ranks";
      byClass.checked = mode() === "class";
      back.disabled = past.length === 0;
      whole.disabled = zoom === tree;
      say();
    }
    function say() {
      const parts = [];
      if (!tree.total.length) parts.push(view.outliers ? "No outliers under these filters." : "No stacks under these filters.");
      else {
        parts.push(`${plural(count(zoom.total), "rank", "ranks")} in ${plural(zoom.classes, "class", "classes")} of equal stacks.`);
        if (!view.width && mode() === "class") parts.push("Every class has equal width, so that a rare one can be seen.");
      }
      if (matches) {
        const found = union([...matches].map((node) => node.total));
        parts.push(matches.size ? `${plural(matches.size, "frame", "frames")} found, in ranks ${clip(fold(found), 200)}.` : "Nothing found.");
      }
      const elsewhere = both(without(readOf(view.role, null), readOf(view.role, view.sample)), view.filter);
      if (elsewhere.length) parts.push(`Read in another sample only: ${clip(fold(elsewhere), 200)}.`);
      const missing = without(both(data.missingSet, view.filter), elsewhere);
      if (missing.length) parts.push(`Not captured, so not in the graph: ${clip(fold(missing), 200)}.`);
      if (shown.length >= MAX_FRAMES) parts.push("The deepest frames are left out; zoom in or filter to see them.");
      status.textContent = parts.join(" ");
    }
    function caption(node, wide) {
      const ranks = count(node.total);
      const tail = ` · ${ranks === 1 ? `rank ${fold(node.total)}` : ranks}`;
      if (!isFrame(node)) return `${seen(node.name) || "unknown"}${tail}`;
      return `${seen(node.name) || "unknown"}${tail}${wide > 260 ? ` · ${seen(shortPath(node.path))}` : ""}`;
    }
    function spoken(node) {
      return `${seen(node.name) || "unknown"}${node.path ? `, ${seen(shortPath(node.path))}` : ""}, ${count(node.total)} of ${count(node.of)} ranks: ${clip(fold(node.total), 120)}`;
    }
    function missingLines(most) {
      const lines = [];
      for (const [ranks, host, reason] of data.missing) {
        const here = both(ranks, view.filter);
        if (here.length) lines.push(`${clip(fold(here), 120)}${host ? ` on ${host}` : ""}: ${reason}`);
      }
      return lines.length > most ? [...lines.slice(0, most), `and ${lines.length - most} more`] : lines;
    }
    function describe(node, most) {
      const inside = count(node.total), of = count(node.of);
      const list = make("dl", {});
      const add = (term, text) => list.append(make("div", {}, make("dt", {}, term), make("dd", {}, make("bdi", {}, seen(text)))));
      if (node.path) add("File", node.path);
      if (node.thread && !node.isThread) add("Thread", node.thread);
      add(`In it: ${inside.toLocaleString("en")} of ${plural(of, "captured rank", "captured ranks")}`, clip(fold(node.total), most));
      const out = without(node.of, node.total);
      add(`Not in it: ${count(out).toLocaleString("en")}`, out.length ? clip(fold(out), most) : "none");
      const missing = missingLines(most > 1000 ? 50 : 4);
      if (missing.length) add("Not captured", missing.join("; "));
      return list;
    }
    function choose(node) {
      chosen = node;
      for (const place of shown) {
        place.element.classList.toggle("chosen", place.node === node);
        place.element.setAttribute("aria-selected", place.node === node);
        place.element.tabIndex = place.node === node ? 0 : -1;
      }
      const copyLabel = make("button", { type: "button" }, "Copy label");
      copyLabel.addEventListener("click", () => copy(frameLabel(node), copyLabel));
      const copyRanks = make("button", { type: "button" }, "Copy ranks");
      copyRanks.addEventListener("click", () => copy(fold(node.total), copyRanks));
      const only = make("button", { type: "button" }, "Only these ranks");
      only.addEventListener("click", () => { view.ranks = fold(node.total); ranksInput.value = view.ranks; rebuild(); ranksInput.focus(); });
      const actions = make("div", { class: "actions" }, copyLabel, copyRanks, only);
      if (host.dataset.stacks && node.total.length)
        actions.append(make("a", { class: "button", href: `${host.dataset.stacks}?rank=${node.total[0]}` }, `Stacks of rank ${node.total[0]}`));
      detail.replaceChildren(make("h3", { class: "mono" }, make("bdi", {}, seen(node.name) || "unknown")), describe(node, 20000), actions);
      detail.hidden = false;
    }
    function focusOn(node) {
      const place = shown.find((p) => p.node === node);
      if (!place) return;
      choose(node);
      place.element.focus({ preventScroll: false });
    }

    // Tooltip
    function showTip(node, x, y) {
      tip.replaceChildren(make("b", {}, make("bdi", {}, seen(node.name) || "unknown")), describe(node, 300));
      tip.hidden = false;
      const box = tip.getBoundingClientRect();
      tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 8))}px`;
      tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
    }
    function hideTip() { tip.hidden = true; }
    graph.addEventListener("pointermove", (event) => {
      const element = event.target.closest(".fg-frame");
      if (!element || event.pointerType === "touch") hideTip();
      else showTip(element.place.node, event.clientX, event.clientY);
    });
    graph.addEventListener("pointerleave", hideTip);
    graph.addEventListener("click", (event) => {
      const element = event.target.closest(".fg-frame");
      if (!element) return;
      const { node } = element.place;
      choose(node);
      if (node !== zoom) zoomTo(node);
    });

    // Keyboard: the arrows walk the tree, Enter zooms, Backspace or Escape goes back
    graph.addEventListener("keydown", (event) => {
      const element = event.target.closest(".fg-frame");
      if (!element) return;
      const { node } = element.place;
      const siblings = node.parent ? node.parent.children : [node];
      const at = siblings.indexOf(node);
      let target = null;
      if (event.key === "ArrowUp") target = node.parent;
      else if (event.key === "ArrowDown") target = node.children[0];
      else if (event.key === "ArrowLeft") target = siblings[at - 1];
      else if (event.key === "ArrowRight") target = siblings[at + 1];
      else if (event.key === "Home") target = zoom;
      else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(node); zoomTo(node); return; }
      else if (event.key === "Backspace" || event.key === "Escape") { event.preventDefault(); goBack(); return; }
      else return;
      event.preventDefault();
      if (target) focusOn(target);
    });

    sampleSelect.addEventListener("change", () => { view.sample = Number(sampleSelect.value); rebuild(); });
    roleSelect.addEventListener("change", () => { view.role = roleSelect.value; fillThreads(); rebuild(); });
    threadSelect.addEventListener("change", () => { view.thread = threadSelect.value; rebuild(); });
    nodeSelect.addEventListener("change", () => { view.node = nodeSelect.value; rebuild(); });
    ranksInput.addEventListener("input", () => { view.ranks = ranksInput.value; rebuild(); });
    searchInput.addEventListener("input", search);
    outliersBox.addEventListener("change", () => { view.outliers = outliersBox.checked; rebuild(); });
    for (const radio of [byRanks, byClass]) radio.addEventListener("change", () => { view.width = radio.value; draw(); remember(); });
    let width = 0;
    new ResizeObserver(() => { if (tree && graph.clientWidth !== width) { width = graph.clientWidth; draw(); } }).observe(graph);
    fillThreads();
    rebuild();
    host.dataset.ready = "true";
    performance.mark("flamegraph drawn");
  }

  function prepare(raw) {
    const sets = raw.sets.map(parseRanks);
    const missing = raw.missing.map(([ranks, host, reason]) => [parseRanks(ranks), host, reason]);
    const missingSet = union(missing.map(([ranks]) => ranks));
    const captured = union(raw.groups.map((g) => sets[g.captured]));
    return { strings: raw.strings, frames: raw.frames, groups: raw.groups, sets, missing, missingSet, captured,
             known: union([captured, missingSet]), hosts: raw.hosts.map(([name, ranks]) => [name, parseRanks(ranks)]), sampleNames: raw.samples };
  }

  async function load() {
    const host = document.getElementById("flamegraph");
    if (!host) return;
    const inline = document.getElementById("flamegraph-data");
    try {
      let raw;
      if (inline) raw = JSON.parse(inline.textContent);
      else {
        const answer = await fetch(host.dataset.source, { credentials: "same-origin" });
        if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
        raw = await answer.json();
      }
      start(host, raw);
    } catch (error) {
      host.replaceChildren(make("p", { class: "fg-error", role: "alert" }, `The flame graph could not be drawn: ${error.message}. The groups below say the same; reload to try again.`));
    }
  }
  load();
})();
