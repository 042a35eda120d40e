package subjects

// Headers of calls and frames. Kind, sequence and generation are headers so
// that a receiver can drop a frame without decoding it.
const (
	HeaderKind   = "Rl-Kind"   // of a frame, see schema.FrameKind; KindCancel or KindReject on a call's subject
	HeaderGen    = "Rl-Gen"    // random name of one generation
	HeaderSeq    = "Rl-Seq"    // of a delta: 0, 1, ...; of a final: the number of deltas; of an operation: 1, 2, ...
	HeaderHeld   = "Rl-Held"   // "1" on accept and beat: the trainer holds calls for now
	HeaderResume = "Rl-Resume" // on a repeated call: number of deltas of Rl-Gen that the worker has
	// HeaderSettled on a call has the numbers of earlier calls of its attempt,
	// separated by commas. The worker has their answers, so the trainer need
	// not keep them.
	HeaderSettled = "Rl-Settled"
	HeaderCall    = "Rl-Call" // on a live delta: the number of its call

	HeaderEncoding = "Rl-Encoding" // of a body: EncodingZstd, or absent
	HeaderClaim    = "Rl-Claim"    // sha256 of the object that has the body: a call's in ArtifactsBucket, a frame's in TasksBucket
)

// EncodingZstd marks a body that is one zstd frame (RFC 8878).
const EncodingZstd = "zstd"

// KindCancel on a call's subject ends the generation of that call.
const KindCancel = "cancel"

// KindReject on a call's subject says that the worker refused the generation of
// HeaderGen and asks for another one. The body is a schema.Fault with the field.
const KindReject = "reject"

// HeaderSubject is the subject on which the original message was published. On
// a copy of a request it names the lane for publishing the request again if the
// queue has lost it. Messages of StreamDead have it too.
const HeaderSubject = "Rl-Subject"

// HeaderReason on a message of StreamDead tells people why it could not be
// read.
const HeaderReason = "Rl-Reason"
