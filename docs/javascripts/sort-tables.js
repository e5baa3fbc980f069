// Tables of the results book are sorted by a click, or Enter, on a heading: by the first number of a cell, else by its
// text; a second click turns the order round. Empty cells stay at the end.
document.addEventListener("DOMContentLoaded", () => {
  if (!location.pathname.includes("/book/")) return;
  const value = (row, column) => row.cells[column].textContent.trim();
  const number = (text) => {
    const found = text.replace(/,(?=\d{3})/g, "").replace("−", "-").match(/^-?\d+(\.\d+)?(e-?\d+)?/);
    return found ? Number(found[0]) : NaN;
  };
  const compare = (a, b) => {
    const [x, y] = [number(a), number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  for (const table of document.querySelectorAll("article table")) {
    const headings = [...table.querySelectorAll("thead th")];
    headings.forEach((heading, column) => {
      heading.tabIndex = 0;
      heading.style.cursor = "pointer";
      heading.title = "Sort";
      const sort = () => {
        const turned = heading.getAttribute("aria-sort") === "ascending";
        headings.forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", turned ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => {
          const [x, y] = [value(a, column), value(b, column)];
          if (!x || !y) return Number(!x) - Number(!y);
          return turned ? compare(y, x) : compare(x, y);
        });
        table.tBodies[0].append(...rows);
      };
      heading.addEventListener("click", sort);
      heading.addEventListener("keydown", (event) => {
        if (event.key === "Enter") sort();
      });
    });
  }
});
