// Package reach lets the commands of a user work in sandboxes that another process of
// the same user has. Such a process is a Host: it has a folder that only the user can
// enter, with a lock and a socket. The lock ends with the process, so that another
// process can tell which folders are left over.
//
// One connection to the socket is one operation: a line of JSON each way. After the
// answer to "open" the connection carries a stream of the sandbox's box.
package reach
