// Package rawjson reads and writes JSON as text. Agents send whole conversations
// with every call, so their values are passed on as they were written and are
// not decoded. A fast path reads plain JSON, which agents send nearly always;
// for any other input the package uses the JSON library.
package rawjson
