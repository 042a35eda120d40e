// Package canonical writes and reads the parts of a canonical call, which have
// the form of OpenAI chat
// (https://platform.openai.com/docs/api-reference/chat/create). Dialects write
// messages and tools of a request with it, and read answers. It also has the lists
// of models and the errors that OpenAI's APIs share.
package canonical
