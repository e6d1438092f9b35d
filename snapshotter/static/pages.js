/* Conveniences of the pages; everything works without them. */
(() => {
  "use strict";

  // Copy buttons are hidden until a script can serve them.
  async function put(text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea"); // no clipboard without https: the old way
      area.value = text;
      area.className = "sr-only";
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 2000);
  }
  for (const button of document.querySelectorAll("[data-copy], [data-copy-from], [data-copy-element]")) {
    button.hidden = false;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      const { copy, copyFrom, copyElement } = button.dataset;
      if (copyFrom) {
        const answer = await fetch(copyFrom, { credentials: "same-origin" });
        await put(await answer.text(), button);
      } else if (copyElement) await put(document.getElementById(copyElement).textContent, button);
      else await put(copy, button);
    });
  }

  // A capture under way: ask again every two seconds, exchange what changed, reload at the end.
  const live = document.querySelector("[data-live]");
  async function refresh(shown) {
    let next = null;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", headers: { Accept: "text/html" } });
      if (answer.ok) next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live]");
      else return void setTimeout(() => refresh(shown), 5000);
    } catch {
      return void setTimeout(() => refresh(shown), 5000); // the server is away: try again
    }
    if (!next) return location.reload();
    const copy = document.importNode(next, true);
    if (shown.innerHTML !== copy.innerHTML && !shown.contains(document.activeElement)) {
      shown.replaceWith(copy);
      shown = copy;
    }
    setTimeout(() => refresh(shown), 2000);
  }
  if (live) setTimeout(() => refresh(live), 2000);

  // On a narrow screen the tabs may scroll: the current one is in sight.
  document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "nearest", block: "nearest" });

  // Times stay in UTC, as logs and dashboards of clusters are; the reader's own time is in the tooltip.
  for (const time of document.querySelectorAll("time[datetime]")) {
    const when = new Date(time.dateTime);
    if (!Number.isNaN(when.getTime())) time.title = `${when.toLocaleString()} here`;
  }
})();
