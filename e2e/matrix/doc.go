// Package matrix runs real agents against a model server that answers in all the ways
// that engines have: odd ids of tool calls, finish reasons that disagree with the answer,
// streams in odd pieces, templates that leave out text, answers that break off. Each
// cell has the right value for calls, reward, fault, files and training rows.
package matrix
