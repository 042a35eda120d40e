package rollout

func (r *run) step() { r.note(1) }

func (r *run) end() {
	r.result.Calls["agent"]++
	_ = r.result.Good()
}
