package egress

// MaxReported is maxReported.
const MaxReported = maxReported
