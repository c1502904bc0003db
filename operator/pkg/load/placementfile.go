package load

import "io"

// ReadPlacement reads Tangram's format of a placement: [layer][rank] lists of experts, as `tangram balance` writes it
// and `tangram-driver apply --placement` reads it. Each layer must hold each expert.
func ReadPlacement(r io.Reader, o Options) (Placement, error) {
	p, err := ReadPlacementLists(r, o)
	if err != nil {
		return nil, err
	}
	return o.whole(placementFormat, p)
}

const placementFormat = "placement"

// ReadPlacementLists reads the same format for callers that know the model: they must check that the lists fit it.
func ReadPlacementLists(r io.Reader, o Options) (Placement, error) {
	j, err := newJSONReader(placementFormat, r, o)
	if err != nil {
		return nil, err
	}
	var p Placement
	if _, err := j.list(func(l int) error {
		p = append(p, nil)
		n, err := j.list(func(int) error {
			held := []int32{}
			_, err := j.list(func(int) error {
				e, err := j.integer(0, mostIndex)
				held = append(held, int32(e))
				return err
			})
			p[l] = append(p[l], held)
			return err
		})
		if err == nil && (n == 0 || n != len(p[0])) {
			return j.fail("%d ranks, layer 0 has %d; want the same number, at least 1", n, len(p[0]))
		}
		return err
	}); err != nil {
		return nil, err
	}
	if len(p) == 0 {
		return nil, j.fail("no layers; want [layer][rank] lists of experts")
	}
	return p, j.end()
}
