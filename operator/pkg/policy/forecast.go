package policy

import "math"

// slope returns the slope of the arrival rate, in requests per second squared, by least squares over the load, and its
// standard error (from the scatter: clumps make it large). 0 with too little data.
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

// forecast returns the rate `ahead` seconds from now: the rate plus its trend minus two standard errors. It at most
// doubles or halves.
func forecast(rate float64, load []second, ahead float64) float64 {
	s, err := slope(load)
	sure := math.Copysign(max(0, math.Abs(s)-2*err), s)
	return min(max(rate+sure*ahead, rate/2), 2*rate)
}

// forecasts are past forecasts, and the ratio of the actual load to them.
type forecasts struct {
	keep float64
	due  []due
	off  []offBy
}

type due struct{ at, rate float64 }

type offBy struct {
	at    float64
	ratio weighted // of the actual rate to the forecast, weighted by the number of requests
}

const (
	forecastFor  = 60.0 // period of a forecast's mean rate, seconds; the replay of the past covers shorter bursts
	fewForecasts = 24   // too few to estimate the error
	assumedOff   = 1.15
	mostOff      = 1.5
)

// add a forecast for the time `at`, and evaluate those whose period has ended.
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

// headroom for a forecast, so that this share of the requests arrives at no higher rate.
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

// account counts responses within the SLO, minute by minute.
type account struct {
	keep    float64
	last    float64
	minutes []minute
}

type minute struct{ at, answers, within float64 }

// add the responses of the last minute, once per minute.
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

// attained returns the share within the SLO; with few responses, it tends to `share`.
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
