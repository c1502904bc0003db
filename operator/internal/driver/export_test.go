package driver

// For the simulation, which checks the records as they are written.
const (
	KeyIntent     = keyIntent
	KeyMembership = keyMembership
)

// Of is (*Fence).of.
func (f *Fence) Of(epoch uint64) bool { return f.of(epoch) }
