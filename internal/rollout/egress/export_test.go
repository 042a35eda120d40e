package egress

// MaxTold is maxTold.
const MaxTold = maxTold
