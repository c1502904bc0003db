package policy

import "math"

// detector of the rate of arrivals, and of its sudden changes: two cumulative sums of the log-likelihood ratio that the
// rate has become `ratio` times as high or as low (Page, Continuous inspection schemes, Biometrika 41, 1954), for
// Poisson counts.
type detector struct {
	rate, seconds  float64 // mean of arrivals since the last change, over these seconds, at most memory
	up, down       float64
	upN, downN     float64 // arrivals and seconds since the sums were last 0
	upS, downS     float64
	age            float64 // seconds since the last change
	lengths, total float64 // of changes, seconds between them
	clumped        float64 // variance of a report's count over its mean: 1 for Poisson, more if requests come in clumps
}

const (
	ratio    = 1.6
	alarm    = 5.0  // of the sums: about one false alarm in e^5 reports
	memory   = 60.0 // seconds over which a constant rate is averaged
	lifetime = 30.0 // expected seconds until the first change
)

// add arrivals during a number of seconds. True: the rate changed.
func (d *detector) add(arrivals, seconds float64) bool {
	d.age += seconds
	expected := max(d.rate, .02) * seconds
	if d.seconds > 2 {
		off := arrivals - expected
		d.clumped += (off*off/max(expected, .1) - d.clumped) * seconds / d.seconds
		// A clump of requests has as much evidence as one separate request.
		clump := max(d.clumped, 1)
		arrivals, expected := arrivals/clump, expected/clump
		d.up += arrivals*math.Log(ratio) - (ratio-1)*expected
		d.upN, d.upS = d.upN+arrivals*clump, d.upS+seconds
		if d.up <= 0 {
			d.up, d.upN, d.upS = 0, 0, 0
		}
		d.down += -arrivals*math.Log(ratio) + (1-1/ratio)*expected
		d.downN, d.downS = d.downN+arrivals*clump, d.downS+seconds
		if d.down <= 0 {
			d.down, d.downN, d.downS = 0, 0, 0
		}
		switch {
		case d.up > alarm:
			d.change(d.upN, d.upS)
			return true
		case d.down > alarm:
			d.change(d.downN, d.downS)
			return true
		}
	}
	d.seconds = min(d.seconds+seconds, memory)
	d.rate += (arrivals/seconds - d.rate) * seconds / d.seconds
	return false
}

func (d *detector) change(arrivals, seconds float64) {
	d.lengths++
	d.total += d.age
	// The data behind the alarm are biased upwards: mix in a few seconds of the old rate.
	const mixed = 2
	d.rate, d.seconds, d.age = (arrivals+mixed*d.rate)/(seconds+mixed), seconds+mixed, 0
	d.up, d.upN, d.upS, d.down, d.downN, d.downS = 0, 0, 0, 0, 0, 0
}

// horizon is the expected duration of the rate: the mean length of past periods, with one of `lifetime` added.
func (d *detector) horizon() float64 {
	return min(max((d.total+lifetime)/(d.lengths+1), 5), 120)
}
