package agents

// asWritten is a script that Node runs before an agent. The agent has no setting
// with which it takes its prompt as it is: where its code has the text from, the
// script puts the text to.
func asWritten(from, to string) []byte {
	return []byte(`const [from, to] = [` + string(quote(from)) + `, ` + string(quote(to)) + `];
require("module").registerHooks({
  load(url, context, next) {
    const loaded = next(url, context);
    if (loaded.format === "module" && url.startsWith("file:")) {
      const source = loaded.source.toString();
      if (source.includes(from)) loaded.source = source.replaceAll(from, () => to);
    }
    return loaded;
  },
});
`)
}
