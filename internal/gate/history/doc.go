// Package history remembers the conversations of a session: agents send their whole
// conversation with every call, and only new parts are parsed, converted, hashed and
// sent to the trainer. The whole body is still read and compared. Dialects remember no
// earlier requests. A dialect only tells which groups are open (invariant 3), and which
// earlier answer a request names.
//
// A body is a JSON object. Its members are the object's fields; its items are the
// elements of the conversation's array.
//
// The way of a request:
//
//   - body.go: Reader.Read compares the body with the newest bodies while it
//     arrives. If it begins like an earlier one, only the rest is added to that text.
//   - reader.go, split.go: Reader.split finds the members and the items of the new
//     part.
//   - fold.go: parts.fold converts new items to canonical messages.
//   - members.go: members and tools that are unchanged are not converted again.
//   - reader.go: Reader.Decode puts the call together.
//   - recent.go: Recent.Place compares the call with the newest calls of its
//     session, and finds the part that the trainer has already.
//   - answers.go keeps the conversation of each answer, for requests with
//     previous_response_id.
//   - size.go, memory.go: estimates and bounds of the memory.
//
// Invariants:
//
//  1. A Reader decodes a body to the same call as a new Reader with the same
//     remembered answers, independent of the bodies before. Only the call's Replaced
//     differs: it counts the replaced characters in the new part of the body.
//  2. Values of a returned Request never change and do not alias a body: bodies
//     are extended in place and their memory is used again. Reader.Decode copies
//     the values that a dialect may pass on, see dialect.Decoder.
//  3. A message is reused for an item of a later body only if that item and all
//     items before it have equal bytes. A group is a run of items that is converted
//     together; an open group may take in the next item. So the messages of a
//     closed group are reused if all its items are shared; for an open group the next
//     item must be shared, too.
//  4. Slices of messages are append-only: two slices with the same first element in
//     memory are equal up to the shorter length. A conversation that loses messages
//     gets a new backing array.
//  5. A branch is the newest body of a conversation. While Read runs,
//     it owns all branches, so a concurrent Read finds none and begins a new
//     conversation. A body becomes a branch only when Decode has succeeded.
//  6. Only a body that was decoded without an error is kept. If reading fails, the
//     earlier body stays, cut to the items that it shares with the new one.
//     Converted members, and converted tools, are cached with their bytes. Value and
//     bytes are replaced together, and only after a successful conversion.
//  7. At most maxBranches bodies are kept for each dialect of a session, and
//     maxRecent calls for the session; Memory bounds all conversations of a worker.
//     When Memory has no room, a session keeps only the hashes of its calls, and parses
//     and converts each body from its beginning. The digest of a call stays the same. After a
//     call of more than manyMessages messages only that call is kept, so later calls
//     may share less.
//  8. All reserved memory is released by Recent.Drop and Reader.Close.
package history
