package subjects

// Headers of calls and frames. Kind, sequence and generation are headers so
// that a receiver can drop a frame without decoding it.
const (
	HeaderKind   = "Rl-Kind"   // of a frame, see schema.FrameKind; "cancel" on a call's subject
	HeaderGen    = "Rl-Gen"    // random name of one generation
	HeaderSeq    = "Rl-Seq"    // of a delta: 0, 1, ...; of a final: the number of deltas
	HeaderHeld   = "Rl-Held"   // "1" on accept and beat: the trainer holds calls for now
	HeaderResume = "Rl-Resume" // on a call that is asked again: deltas held of Rl-Gen
	HeaderCall   = "Rl-Call"   // on a live delta: the number of its call

	HeaderEncoding = "Rl-Encoding" // of a body: EncodingZstd, or none
	HeaderClaim    = "Rl-Claim"    // sha256 of an object that is the body: of a call in BucketArtifact, of a frame in BucketTasks
)

// EncodingZstd is a body that is one zstd frame (RFC 8878).
const EncodingZstd = "zstd"

// KindCancel on a call's subject ends the generation of that call.
const KindCancel = "cancel"

// HeaderSubject on a copy of a request says where it was published: the lane
// on which it is made again if the queue lost it. On a message of StreamDead
// it says where the message came on.
const HeaderSubject = "Rl-Subject"

// HeaderReason on a message of StreamDead says in words why it is there.
const HeaderReason = "Rl-Reason"
