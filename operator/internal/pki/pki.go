// Package pki makes the certificates of one world: a certificate authority and, for each
// part, a certificate whose URI says what it may do,
// spiffe://tangram/<world>/{driver|gateway|agent/<pod>|engine/<pod>}.
//
// Nobody checks addresses: they change when a pod moves, the role does not. Go checks the
// URI; gRPC in C++ can only check a name, so that a certificate also carries the DNS name
// <driver|gateway|agent|engine>.<world>, the same for all of its kind.
package pki

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Validity of what is made. 0: a year for authorities, 30 days for the certificates that they sign.
type Validity struct{ Authority, Certificate time.Duration }

func (v Validity) orDefaults() Validity {
	return Validity{cmp.Or(v.Authority, 365*24*time.Hour), cmp.Or(v.Certificate, 30*24*time.Hour)}
}

// skew by which clocks may differ: certificates are valid that much before they are made.
const skew = time.Hour

// RenewAt is when two thirds of a certificate's time are over.
func RenewAt(c *x509.Certificate) time.Time {
	made := c.NotBefore.Add(skew)
	return made.Add(c.NotAfter.Sub(made) * 2 / 3)
}

// Authority signs for one world. It lies in memory; BundlePEM, KeyPEM and NextKeyPEM are what to keep.
type Authority struct {
	world    string
	validity Validity
	certs    []*x509.Certificate // trusted: the one that signs, then the next or the one before
	key      *ecdsa.PrivateKey
	nextKey  *ecdsa.PrivateKey // of certs[1], which is to sign once all trust it; nil: none is to
	issuer   *Issuer           // where the next ones come from; nil: they are made here
}

// What a name may be, so that it cannot change the shape of the URI.
var plain = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

func checkWorld(world string) error {
	if !plain.MatchString(world) {
		return fmt.Errorf("pki: invalid world name %q; use only letters, digits, '-', '_' and '.'", world)
	}
	return nil
}

// URI of a role ("driver", "gateway", "agent/<pod>", "engine/<pod>") in a world.
func URI(world, role string) (*url.URL, error) {
	parts := strings.Split(role, "/")
	known := len(parts) == 1 && (role == "driver" || role == "gateway") ||
		len(parts) == 2 && (parts[0] == "agent" || parts[0] == "engine") && plain.MatchString(parts[1])
	if !known {
		return nil, fmt.Errorf("pki: unknown role %q; use driver, gateway, agent/<pod> or engine/<pod>", role)
	}
	if err := checkWorld(world); err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "spiffe", Host: "tangram", Path: "/" + world + "/" + role}, nil
}

// Name of all certificates of a role's kind: agent.<world> for "agent/<pod>".
func Name(world, role string) string {
	kind, _, _ := strings.Cut(role, "/")
	return kind + "." + world
}

func commonName(world string) string { return "tangram " + world }

// NewAuthority makes a key and a certificate.
func NewAuthority(world string, v Validity) (*Authority, error) {
	if err := checkWorld(world); err != nil {
		return nil, err
	}
	a := &Authority{world: world, validity: v.orDefaults()}
	cert, key, err := a.root()
	a.certs, a.key = []*x509.Certificate{cert}, key
	return a, err
}

// root is a new pair for the authority.
func (a *Authority) root() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: make a key: %w", err)
	}
	template, err := newTemplate(commonName(a.world), time.Now().Add(a.validity.Authority))
	if err != nil {
		return nil, nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: sign the authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %w", err)
	}
	return cert, key, nil
}

// ParseAuthority reads what BundlePEM, KeyPEM and NextKeyPEM (or nil) gave; it refuses another world's.
func ParseAuthority(world string, v Validity, certPEM, keyPEM, nextPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("pki: read the authority of world %q: %w", world, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("pki: the authority of world %q has a %T, not an ECDSA key", world, pair.PrivateKey)
	}
	a := &Authority{world: world, validity: v.orDefaults(), key: key}
	for _, der := range pair.Certificate {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("pki: read the authority of world %q: %w", world, err)
		}
		// Those of issuers are called as they like.
		if name := cert.Subject.CommonName; name != commonName(world) && strings.HasPrefix(name, commonName("")) {
			return nil, fmt.Errorf("pki: this is the authority %q, not the authority of world %q", name, world)
		}
		a.certs = append(a.certs, cert)
	}
	if nextPEM == nil {
		return a, nil
	}
	if len(a.certs) != 2 {
		return nil, fmt.Errorf("pki: the authority of world %q has a next key, but %d certificates instead of 2", world, len(a.certs))
	}
	next, err := tls.X509KeyPair(certPEMs(a.certs[1:]), nextPEM)
	if err != nil {
		return nil, fmt.Errorf("pki: read the next authority of world %q: %w", world, err)
	}
	if a.nextKey, ok = next.PrivateKey.(*ecdsa.PrivateKey); !ok {
		return nil, fmt.Errorf("pki: the next authority of world %q has a %T, not an ECDSA key", world, next.PrivateKey)
	}
	return a, nil
}

// BundlePEM is what everybody in the world trusts; the certificate that signs comes first.
func (a *Authority) BundlePEM() []byte { return certPEMs(a.certs) }

// KeyPEM of the authority: whoever has it can play every role.
func (a *Authority) KeyPEM() ([]byte, error) { return keyPEM(a.key) }

// NextKeyPEM of the authority that is to follow; nil: none is.
func (a *Authority) NextKeyPEM() ([]byte, error) {
	if a.nextKey == nil {
		return nil, nil
	}
	return keyPEM(a.nextKey)
}

// IssuePEM makes a certificate for a role of the authority's world. hosts are DNS names or IP
// addresses, for clients that check them, as browsers do.
func (a *Authority) IssuePEM(role string, hosts []string) (cert, key []byte, err error) {
	id, err := URI(a.world, role)
	if err != nil {
		return nil, nil, err
	}
	until := time.Now().Add(a.validity.Certificate)
	if last := a.certs[0].NotAfter; until.After(last) {
		until = last // beyond it, it would be worth nothing
	}
	template, err := newTemplate(role, until)
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.URIs = []*url.URL{id}
	template.DNSNames = []string{Name(a.world, role)}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: make a key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certs[0], &own.PublicKey, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: sign %s: %w", role, err)
	}
	key, err = keyPEM(own)
	return certPEM(der), key, err
}

func newTemplate(name string, until time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("pki: serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-skew), NotAfter: until,
	}, nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func certPEMs(certs []*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, certPEM(c.Raw)...)
	}
	return out
}

// keyPEM is PKCS#8, which OpenSSL and Go both read.
func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
