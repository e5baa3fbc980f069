"use strict";
// Rows are drawn from the data below the page, a hundred at a time: a page of thousands of sentences opens at once.
// Text from the data only ever becomes a text node.
(() => {
  const CHUNK = 100;
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = data.rows.map((values, i) =>
    Object.assign(Object.fromEntries(values.map((value, k) => [data.columns[k], value])), { marks: data.marks[i] }));
  const $ = (selector, inside = document) => inside.querySelector(selector);
  const body = $("#rows tbody"), form = $("#filters"), more = $("#more"), dialog = $("#one");
  const columns = [...document.querySelectorAll("#rows thead th")];
  const labels = data.labels;
  let chosen = rows, drawn = 0, order = null;

  function element(tag, className, ...children) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }

  function marked(marks) {
    const kinds = { p: "pair-mark", w: "word-mark" };
    return marks.map(([text, kind]) => kinds[kind] ? element("mark", kinds[kind], text) : element("span", "miss", text));
  }

  function recovered(row) {
    const made = element("span", "read", ...(row.marks.length ? marked(row.marks) : [element("span", "miss", "nothing")]));
    const uncovered = row.lost ? ` but for ${row.lost} unknown token${row.lost === 1 ? "" : "s"}` : "";
    if (row.certified) made.append(" ", element("span", "badge", `✓ certified${uncovered}`));
    if (row.status !== "completed") made.append(" ", element("span", "badge warning", `⚠ ${row.status}`));
    return made;
  }

  function number(value) {
    return value === null ? "–" : typeof value === "number" ? String(Math.round(value * 100) / 100) : String(value);
  }

  function line(row) {
    const made = document.createElement("tr");
    for (const heading of columns) {
      const name = heading.dataset.name;
      const cell = element("td", heading.className);
      if (name === "truth") {
        const which = row.side ? [element("span", "badge side", row.side), " "] : [];
        const open = element("button", "open", ...which, element("span", "truth", row.truth || "no truth given"));
        open.type = "button";
        open.title = "All attempts on this sentence";
        open.addEventListener("click", () => show(row));
        cell.className = "text";
        cell.append(open, document.createElement("br"), recovered(row));
      } else {
        cell.dataset.label = heading.textContent;
        cell.append(number(row[name]));
      }
      made.append(cell);
    }
    return made;
  }

  function draw(upTo) {
    const fresh = document.createDocumentFragment();
    for (; drawn < Math.min(upTo, chosen.length); drawn++) fresh.append(line(chosen[drawn]));
    body.append(fresh);
    const left = chosen.length - drawn;
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(CHUNK, left)} more of ${left}`;
  }

  const kinds = {
    whole: (row) => row.exact_match === 100,
    part: (row) => row.rouge1 > 0 && row.exact_match < 100,
    nothing: (row) => row.rouge1 === 0,
    pieces: (row) => (row.names_found || 0) + (row.numbers_found || 0) > 0,
    certified: (row) => row.certified,
  };

  function compare(a, b, name, sign) {
    const [left, right] = [a[name], b[name]];
    if (left === right) return 0;
    if (left === null || right === null) return left === null ? 1 : -1;
    return sign * (typeof left === "string" ? left.localeCompare(right) : left - right);
  }

  function choose() {
    const wanted = Object.fromEntries(new FormData(form));
    const words = wanted.words.trim().toLowerCase();
    chosen = rows.filter((row) =>
      ["scenario", "defense", "attack"].every((name) => !wanted[name] || row[name] === wanted[name]) &&
      (!wanted.kind || kinds[wanted.kind](row)) &&
      (!words || row.truth.toLowerCase().includes(words) || row.recovered.toLowerCase().includes(words)));
    if (order) chosen = [...chosen].sort((a, b) => compare(a, b, order.name, order.sign));
    body.replaceChildren();
    drawn = 0;
    draw(CHUNK);
    const whole = chosen.filter(kinds.whole).length;
    const proved = chosen.filter(kinds.certified).length;
    const counted = rows.some((row) => row.truth) ? `${whole} of them whole` : `${proved} of them with a certificate`;
    $("#count").textContent = `${chosen.length} of ${rows.length} sentences, ${counted}.`;
    for (const other of document.querySelectorAll("table.filtered tbody tr"))
      other.hidden = ["scenario", "defense"].some((name) => wanted[name] && other.dataset[name] !== wanted[name]);
  }

  function turn(heading) {
    const now = heading.getAttribute("aria-sort");
    const numeric = heading.classList.contains("num");
    const next = now === "none" ? (numeric ? "descending" : "ascending") : now === "ascending" ? "descending" : "ascending";
    for (const other of heading.parentElement.children) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", next);
    return next === "ascending" ? 1 : -1;
  }

  function sortStatic(heading) {
    const place = [...heading.parentElement.children].indexOf(heading), sign = turn(heading);
    const inside = heading.closest("table").tBodies[0];
    const value = (row) => row.cells[place].dataset.value ?? row.cells[place].textContent.trim();
    const key = (row) => (value(row) !== "" && !isNaN(value(row)) ? Number(value(row)) : value(row));
    inside.append(...[...inside.rows].sort((a, b) => compare({ k: key(a) }, { k: key(b) }, "k", sign)));
  }

  function show(row) {
    const alike = (other) => other === row || (row.truth && other.truth === row.truth);
    const same = rows.filter(alike).sort((a, b) => b.rougeL - a.rougeL);
    const table = document.createElement("table");
    table.createCaption().textContent = same.length > 1 ? `${same.length} attempts, the best first` : "One attempt";
    const head = table.createTHead().insertRow();
    const names = ["scenario", "defense", "attack"].filter((name) => new Set(rows.map((one) => one[name])).size > 1);
    for (const label of [...names.map((name) => labels[name]), "Read back", "Scores"]) {
      const cell = element("th", "", label);
      cell.scope = "col";
      head.append(cell);
    }
    const inside = table.createTBody();
    for (const one of same) {
      const made = inside.insertRow();
      for (const name of names) made.insertCell().textContent = one[name];
      made.insertCell().append(recovered(one));
      const scores = data.scores.filter((name) => one[name] !== null).map((name) => `${labels[name]} ${Math.round(one[name])}`);
      const pieces = one.names === null ? [] : [`names ${one.names_found} of ${one.names}`, `numbers ${one.numbers_found} of ${one.numbers}`];
      const about = [`trial ${one.trial}`, `confidence ${one.confidence}`, ...(one.stage ? [`found by ${one.stage}`] : []), `${one.seconds} s`];
      made.insertCell().textContent = [...scores, ...pieces, ...about].join(" · ");
    }
    $("#one-body").replaceChildren(element("blockquote", "", row.truth || "no truth given"), table);
    dialog.showModal();
  }

  function save(kind) {
    const plain = chosen.map(({ marks, ...rest }) => rest);
    const harmless = (value) => (/^[=+\-@\t\r]/.test(value) ? `'${value}` : value);
    const quoted = (value) => {
      const text = value === null ? "" : typeof value === "string" ? harmless(value) : value === true ? "True" : value === false ? "False" : String(value);
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const text = kind === "json"
      ? JSON.stringify(plain, null, 1) + "\n"
      : [data.columns, ...plain.map((row) => data.columns.map((name) => row[name]))].map((values) => values.map(quoted).join(",")).join("\r\n") + "\r\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: kind === "json" ? "application/json" : "text/csv" }));
    link.download = `sentences.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function theme(wanted) {
    if (wanted) document.documentElement.dataset.theme = wanted;
    else delete document.documentElement.dataset.theme;
    $("#theme").value = wanted;
    try { localStorage.setItem("gradleak-theme", wanted); } catch { /* a page from a file may have no memory */ }
  }

  form.addEventListener("input", choose);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(choose));
  more.addEventListener("click", () => { const first = drawn; draw(drawn + CHUNK); $("button", body.rows[first])?.focus(); });
  for (const heading of columns)
    $("button", heading).addEventListener("click", () => { order = { name: heading.dataset.name, sign: turn(heading) }; choose(); });
  for (const heading of document.querySelectorAll("table.sortable:not(#rows) thead th"))
    $("button", heading).addEventListener("click", () => sortStatic(heading));
  for (const button of document.querySelectorAll("[data-export]"))
    button.addEventListener("click", () => save(button.dataset.export));
  $("#theme").addEventListener("change", (event) => theme(event.target.value));
  window.addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details")) one.open = true;
    draw(chosen.length);
  });
  try { theme(localStorage.getItem("gradleak-theme") || ""); } catch { theme(""); }
  choose();
})();
