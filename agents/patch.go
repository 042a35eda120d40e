package agents

// A change replaces a text in the code of an agent that runs on Node.
type change struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// patch is a script that Node runs before an agent: it changes the agent's code as it
// is loaded, where the agent has no setting for the same.
func patch(changes ...change) []byte {
	return []byte(`const changes = ` + string(quote(changes)) + `;
require("module").registerHooks({
  load(url, context, next) {
    const loaded = next(url, context);
    if (loaded.format === "module" && url.startsWith("file:")) {
      const source = loaded.source.toString();
      const changed = changes.reduce((s, { from, to }) => s.replaceAll(from, () => to), source);
      if (changed !== source) loaded.source = changed;
    }
    return loaded;
  },
});
`)
}
