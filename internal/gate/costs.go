package gate

// costs are the sums of the costs of the answers, by tag; nil: the cost of an answer is
// not known.
type costs map[string]*float64

// add adds the cost of an answer and returns the sum for its tag.
func (c costs) add(tag string, cost *float64) *float64 {
	sum, known := c[tag]
	switch {
	case cost == nil || known && sum == nil:
		c[tag] = nil
	case !known:
		c[tag] = cost
	default:
		both := *sum + *cost
		c[tag] = &both
	}
	return c[tag]
}
