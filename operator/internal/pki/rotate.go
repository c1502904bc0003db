package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"
)

// Advance replaces an authority in three steps: all trust the next one, it signs, the previous one is no longer
// trusted. Before each step, all processes get time to load the result of the previous one.

// Stage is the state of an authority's replacement.
type Stage int

// The stages.
const (
	Alone    Stage = iota // one authority
	Trusting              // the next one is being distributed
	Signing               // the next one signs; certificates of the previous one are being replaced
)

// Stage returns the authority's current stage.
func (a *Authority) Stage() Stage {
	switch {
	case a.nextKey != nil:
		return Trusting
	case len(a.certs) > 1:
		return Signing
	}
	return Alone
}

// Expires returns the end of the signing certificate.
func (a *Authority) Expires() time.Time { return a.certs[0].NotAfter }

// NextStep returns the time when Advance has something to do. settled is when all processes had received the
// authority's current output; zero: not yet, and the caller must see to it.
func (a *Authority) NextStep(settled time.Time, load time.Duration) time.Time {
	switch {
	case a.Stage() == Alone && a.issuer == nil:
		return RenewAt(a.certs[0])
	case a.Stage() == Alone && a.issuer.cert.Equal(a.certs[0]):
		return time.Time{}
	case a.Stage() == Alone:
		return a.certs[0].NotBefore // the issuer has another one: advance immediately
	}
	if settled.IsZero() {
		return time.Time{}
	}
	return settled.Add(load)
}

// Advance takes the next step if it is due. load is the time in which all processes load the files that they received.
func (a *Authority) Advance(now, settled time.Time, load time.Duration) (advanced bool, err error) {
	if at := a.NextStep(settled, load); at.IsZero() || now.Before(at) {
		return false, nil
	}
	switch a.Stage() {
	case Alone:
		var next *x509.Certificate
		if a.issuer != nil {
			next, a.nextKey = a.issuer.cert, a.issuer.key
		} else if next, a.nextKey, err = a.root(); err != nil {
			return false, err
		}
		a.certs = append(a.certs, next)
	case Trusting:
		slices.Reverse(a.certs)
		a.key, a.nextKey = a.nextKey, nil
	case Signing:
		a.certs = a.certs[:1]
	}
	return true, nil
}

// Issuer is the certificate and key of an authority that another system, such as a certificate manager, renews.
type Issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// ParseIssuer reads a self-signed certificate that may sign others, and its ECDSA key.
func ParseIssuer(certPEM, keyPEM []byte) (*Issuer, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("pki: read the issuer: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	switch {
	case !ok:
		return nil, fmt.Errorf("pki: the issuer has a %T, not an ECDSA key", pair.PrivateKey)
	case pair.Leaf.CheckSignatureFrom(pair.Leaf) != nil:
		return nil, fmt.Errorf("pki: the issuer %q is not a self-signed authority; agents and engines trust only self-signed authorities", pair.Leaf.Subject.CommonName)
	case time.Now().After(pair.Leaf.NotAfter):
		return nil, fmt.Errorf("pki: the issuer %q expired at %s", pair.Leaf.Subject.CommonName, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return &Issuer{cert: pair.Leaf, key: key}, nil
}

// Authority returns a world's authority that begins with the issuer's certificate.
func (i *Issuer) Authority(world string, v Validity) (*Authority, error) {
	if err := checkWorld(world); err != nil {
		return nil, err
	}
	return &Authority{world: world, validity: v.orDefaults(), certs: []*x509.Certificate{i.cert}, key: i.key, issuer: i}, nil
}

// Follow makes the issuer's certificate the next authority.
func (a *Authority) Follow(i *Issuer) { a.issuer = i }

// Good returns the time until which a certificate of IssuePEM needs no replacement, and its expiry. until is zero if
// another authority signed it or if it cannot be parsed.
func (a *Authority) Good(certPEM []byte) (until, expires time.Time) {
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return time.Time{}, time.Time{}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, time.Time{}
	}
	switch {
	case cert.CheckSignatureFrom(a.certs[0]) != nil:
		return time.Time{}, cert.NotAfter
	case cert.NotAfter.Equal(a.certs[0].NotAfter): // a new one would end as early
		return cert.NotAfter, cert.NotAfter
	}
	return RenewAt(cert), cert.NotAfter
}
