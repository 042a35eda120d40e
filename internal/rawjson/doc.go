// Package rawjson reads and writes JSON as text. Agents send whole conversations
// again and again, so values are passed on as the text that they are, and are not
// decoded. jsontext reads them.
package rawjson
