// Shows openapi.json: a table of fields for each path.

document.documentElement.dataset.theme =
  localStorage.getItem("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

function made(tag, content = "", kind = "") {
  const node = document.createElement(tag);
  node.textContent = content;
  if (kind) node.className = kind;
  return node;
}

function row(tag, ...cells) {
  const line = document.createElement("tr");
  line.append(...cells.map((cell) => made(tag, cell)));
  return line;
}

function typeOf(schema) {
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  return schema.format === "binary" ? "file" : schema.type || "";
}

const api = await (await fetch("openapi.json")).json();
const page = document.getElementById("api");
page.append(made("p", api.info.description));
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, about] of Object.entries(methods)) {
    const head = document.createElement("h2");
    head.append(made("span", method.toUpperCase(), "method"), made("code", path));
    page.append(head, made("p", about.description || about.summary));
    const form = about.requestBody?.content["multipart/form-data"].schema;
    if (form) {
      const table = document.createElement("table");
      table.append(row("th", "field", "values", "meaning"));
      for (const [name, schema] of Object.entries(form.properties)) {
        const isNeeded = form.required.includes(name) ? " (needed)" : "";
        table.append(row("td", name + isNeeded, typeOf(schema), schema.description || ""));
      }
      page.append(table);
    }
    const table = document.createElement("table");
    table.append(row("th", "status", "answer"));
    for (const [status, answer] of Object.entries(about.responses)) table.append(row("td", status, answer.description));
    page.append(table);
    if (about["x-example"]) page.append(made("pre", about["x-example"].replaceAll("ADDRESS", new URL(".", location.href).href.slice(0, -1))));
  }
}
