// Package pki makes the certificates of one world: a certificate authority and one certificate per program. The
// certificate's URI names its role, spiffe://tangram/<world>/{driver|gateway|agent/<pod>|engine/<pod>}.
//
// Tangram's programs do not check addresses, because a pod's address can change; its role does not. Go checks the URI.
// gRPC in C++ can check only a name, so a certificate also has the DNS name <driver|gateway|agent|engine>.<world>,
// which is the same for all certificates of one kind.
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

// Validity is the lifetime of certificates. 0: a year for authorities, 30 days for the certificates that they sign.
type Validity struct{ Authority, Certificate time.Duration }

func (v Validity) orDefaults() Validity {
	return Validity{cmp.Or(v.Authority, 365*24*time.Hour), cmp.Or(v.Certificate, 30*24*time.Hour)}
}

// skew is the tolerated difference between clocks: the validity of a certificate begins this long before its creation.
const skew = time.Hour

// RenewAt returns the time when two thirds of a certificate's lifetime have passed.
func RenewAt(c *x509.Certificate) time.Time {
	made := c.NotBefore.Add(skew)
	return made.Add(c.NotAfter.Sub(made) * 2 / 3)
}

// Authority signs for one world. It is kept in memory; store BundlePEM, KeyPEM and NextKeyPEM to keep it for longer.
type Authority struct {
	world    string
	validity Validity
	certs    []*x509.Certificate // trusted: the signing one first, then the next or the previous one
	key      *ecdsa.PrivateKey
	nextKey  *ecdsa.PrivateKey // of certs[1], which signs once all processes trust it; nil: no next authority
	issuer   *Issuer           // source of the next authorities; nil: the Authority creates them
}

// plain matches names that cannot change the structure of the URI.
var plain = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

func checkWorld(world string) error {
	if !plain.MatchString(world) {
		return fmt.Errorf("pki: invalid world name %q; use only letters, digits, '-', '_' and '.'", world)
	}
	return nil
}

// URI returns the URI of a role ("driver", "gateway", "agent/<pod>", "engine/<pod>") in a world.
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

// Name returns the DNS name in all certificates of a role's kind: agent.<world> for "agent/<pod>".
func Name(world, role string) string {
	kind, _, _ := strings.Cut(role, "/")
	return kind + "." + world
}

func commonName(world string) string { return "tangram " + world }

// NewAuthority creates a key and a self-signed certificate.
func NewAuthority(world string, v Validity) (*Authority, error) {
	if err := checkWorld(world); err != nil {
		return nil, err
	}
	a := &Authority{world: world, validity: v.orDefaults()}
	cert, key, err := a.root()
	a.certs, a.key = []*x509.Certificate{cert}, key
	return a, err
}

// root creates a new key and certificate for the authority.
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

// ParseAuthority reads the output of BundlePEM, KeyPEM and NextKeyPEM (or nil). It rejects another world's authority.
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
		// The certificate of an Issuer may have any name.
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

// BundlePEM returns the certificates that all processes of the world trust; the signing one comes first.
func (a *Authority) BundlePEM() []byte { return certPEMs(a.certs) }

// KeyPEM returns the authority's private key. Its holder can assume every role.
func (a *Authority) KeyPEM() ([]byte, error) { return keyPEM(a.key) }

// NextKeyPEM returns the key of the next authority; nil: there is none.
func (a *Authority) NextKeyPEM() ([]byte, error) {
	if a.nextKey == nil {
		return nil, nil
	}
	return keyPEM(a.nextKey)
}

// IssuePEM creates a certificate for a role of the authority's world. hosts are DNS names or IP addresses, for clients
// that check them, such as browsers.
func (a *Authority) IssuePEM(role string, hosts []string) (cert, key []byte, err error) {
	id, err := URI(a.world, role)
	if err != nil {
		return nil, nil, err
	}
	until := time.Now().Add(a.validity.Certificate)
	if last := a.certs[0].NotAfter; until.After(last) {
		until = last // a certificate is worthless after its authority's end
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

// keyPEM encodes a key as PKCS#8, which both OpenSSL and Go read.
func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
