package policy

import "math"

// slope of the rate of arrivals, in requests per second and second, by least squares over the last so many seconds, and how far it may be
// off (one standard error, by the scatter that is there: clumps make it large). Too little is known: 0.
func slope(load []second) (slope, err float64) {
	var n, t, y float64
	for _, s := range load {
		n++
		t += s.at
		y += s.requests / s.seconds
	}
	if n < 20 {
		return 0, 0
	}
	t, y = t/n, y/n
	var tt, ty float64
	for _, s := range load {
		tt += (s.at - t) * (s.at - t)
		ty += (s.at - t) * (s.requests/s.seconds - y)
	}
	if tt == 0 {
		return 0, 0
	}
	slope = ty / tt
	rest := 0.0
	for _, s := range load {
		off := s.requests/s.seconds - y - slope*(s.at-t)
		rest += off * off
	}
	return slope, math.Sqrt(rest / (n - 2) / tt)
}

// forecast of the rate in so many seconds: what it is, and its trend, as far as that is sure (two standard errors are taken off).
// It grows at most to twice, and falls at most to half.
func forecast(rate float64, load []second, ahead float64) float64 {
	s, err := slope(load)
	sure := math.Copysign(max(0, math.Abs(s)-2*err), s)
	return min(max(rate+sure*ahead, rate/2), 2*rate)
}

// forecasts that were made, and by how much the load was above what they said.
type forecasts struct {
	keep float64
	due  []due
	off  []offBy
}

type due struct{ at, rate float64 }

type offBy struct {
	at    float64
	ratio weighted // of the rate that came to the forecast one, weighted by the requests that came
}

const (
	forecastFor  = 60.0 // seconds whose mean rate a forecast is about: shorter bursts are what playing the past is for
	fewForecasts = 24   // that say nothing of how wrong they are
	assumedOff   = 1.15
	mostOff      = 1.5
)

// add one for a moment, and look how good those were whose time is over.
func (f *forecasts) add(now, at, rate float64, load *past) {
	for len(f.due) > 0 && f.due[0].at+forecastFor <= now {
		d := f.due[0]
		f.due = f.due[1:]
		var n, seconds float64
		for _, s := range load.since(d.at) {
			if s.at > d.at+forecastFor {
				break
			}
			n, seconds = n+s.requests, seconds+s.seconds
		}
		if n > 0 && seconds > forecastFor/2 {
			f.off = append(f.off, offBy{now, weighted{n / seconds / max(d.rate, .01), n}})
		}
	}
	f.due = append(f.due, due{at, rate})
	old := 0
	for old < len(f.off) && f.off[old].at < now-f.keep {
		old++
	}
	f.off = f.off[old:]
}

// headroom that a forecast needs, so that this share of the requests comes at no higher rate.
func (f *forecasts) headroom(share float64) float64 {
	if len(f.off) < fewForecasts {
		return assumedOff
	}
	all := make([]weighted, len(f.off))
	for i, o := range f.off {
		all[i] = o.ratio
	}
	return min(max(quantile(all, share), 1), mostOff)
}

// account of the answers that were within the SLO, minute by minute.
type account struct {
	keep    float64
	last    float64
	minutes []minute
}

type minute struct{ at, answers, within float64 }

// add what was felt in the last minute, once in each.
func (a *account) add(now float64, f Felt) {
	if now-a.last < recently || f.Answers == 0 {
		return
	}
	a.last = now
	a.minutes = append(a.minutes, minute{now, float64(f.Answers), f.Within * float64(f.Answers)})
	for a.minutes[0].at < now-a.keep {
		a.minutes = a.minutes[1:]
	}
}

// attained share; of few answers the SLO's.
func (a *account) attained(share float64) float64 {
	n, within := 0.0, 0.0
	for _, m := range a.minutes {
		n, within = n+m.answers, within+m.within
	}
	return (within + share*fewAnswers) / (n + fewAnswers)
}

func meanRate(load []second) float64 {
	n, seconds := 0.0, 0.0
	for _, s := range load {
		n, seconds = n+s.requests, seconds+s.seconds
	}
	return n / max(seconds, shortest)
}
