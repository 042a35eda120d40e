// Package history remembers the conversations of a session, so that the cost of
// a call does not grow with its conversation: agents send their whole
// conversation with every call, and only new parts are parsed, converted, hashed
// and sent to the trainer. Dialects know nothing of it.
//
// The way of a request:
//
//   - body.go: Reader.Read compares the body with the newest bodies while it
//     arrives. A shared beginning stays in memory once.
//   - reader.go, split.go: Reader.split finds the members and the items of the new
//     part.
//   - fold.go: parts.fold converts new items to canonical messages.
//   - members.go: members and tools that are unchanged are not converted again.
//   - reader.go: Reader.Decode puts the call together.
//   - recent.go: Recent.Place compares the call with the newest calls of its
//     session, and finds the part that the trainer has already.
//   - answers.go keeps conversations for requests that name an answer.
//   - size.go, memory.go: estimates and bounds of the memory.
//
// Invariants:
//
//  1. A Reader decodes a body to the same call as a new Reader with the same
//     remembered answers, independent of the bodies before.
//  2. Values of a returned Request never change and do not alias a body: bodies
//     are extended in place and their memory is used again. Reader.Decode copies
//     the values that a dialect may pass on, see dialect.Decoder.
//  3. Two items share a message only if their bytes and the bytes of all items
//     before them are equal. So a group of items is converted again only if one
//     of its items, or the item after an open group, is new.
//  4. Lists of messages are append-only: two lists with the same first element
//     in memory are equal up to the shorter one's length. A conversation that
//     loses messages gets a new list.
//  5. A branch is the newest body of a conversation. From Read until Decode a body
//     belongs to one request and is no branch. A request read at that time begins a conversation of its own.
//  6. Only a body that was decoded without an error is kept. Members, tools and
//     their bytes change together, and only if their conversion succeeds.
//  7. At most maxBranches bodies are kept for each dialect of a session, and maxRecent
//     calls for the session;
//     Memory bounds all conversations of a worker. Beyond the bound a session
//     keeps the hashes of its calls, and reads each body whole; the shared part
//     and the digest of a call stay the same.
//  8. All reserved memory is released by Recent.Drop and Reader.Close.
package history
