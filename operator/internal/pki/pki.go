// Package pki makes the certificates of one world: a certificate authority and, for each
// part, a certificate whose URI says what it may do,
// spiffe://tangram/<world>/{driver|gateway|agent/<pod>|engine/<pod>}.
//
// Nobody checks addresses: they change when a pod moves, the role does not. Go checks the
// URI; gRPC in C++ can only check a name, so that a certificate also carries the DNS name
// <driver|gateway|agent|engine>.<world>, the same for all of its kind.
package pki

import (
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

// validity of a certificate; long enough for any test, demo or trial.
const validity = 365 * 24 * time.Hour

// Authority signs for one world. It lies in memory; CertPEM and KeyPEM are what to keep.
type Authority struct {
	world string
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
}

// What a name may be, so that it cannot change the shape of the URI.
var plain = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

func checkWorld(world string) error {
	if !plain.MatchString(world) {
		return fmt.Errorf("pki: world %q may hold letters, digits, '-', '_', '.' only", world)
	}
	return nil
}

// URI of a role ("driver", "gateway", "agent/<pod>", "engine/<pod>") in a world.
func URI(world, role string) (*url.URL, error) {
	parts := strings.Split(role, "/")
	known := len(parts) == 1 && (role == "driver" || role == "gateway") ||
		len(parts) == 2 && (parts[0] == "agent" || parts[0] == "engine") && plain.MatchString(parts[1])
	if !known {
		return nil, fmt.Errorf("pki: role %q is not driver, gateway, agent/<pod> or engine/<pod>", role)
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
func NewAuthority(world string) (*Authority, error) {
	if err := checkWorld(world); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("pki: make a key: %w", err)
	}
	template, err := newTemplate(commonName(world))
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("pki: sign the authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return &Authority{world: world, cert: cert, key: key}, nil
}

// ParseAuthority reads what CertPEM and KeyPEM gave; it refuses another world's.
func ParseAuthority(world string, certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("pki: read the authority of world %q: %w", world, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("pki: the authority of world %q has a %T, not an ECDSA key", world, pair.PrivateKey)
	}
	if name := pair.Leaf.Subject.CommonName; name != commonName(world) {
		return nil, fmt.Errorf("pki: this is the authority %q, not the authority of world %q", name, world)
	}
	return &Authority{world: world, cert: pair.Leaf, key: key}, nil
}

// CertPEM of the authority: what everybody in the world trusts.
func (a *Authority) CertPEM() []byte { return certPEM(a.cert.Raw) }

// KeyPEM of the authority: whoever has it can play every role.
func (a *Authority) KeyPEM() ([]byte, error) { return keyPEM(a.key) }

// IssuePEM makes a certificate for a role of the authority's world. hosts are DNS names or IP
// addresses, for clients that check them, as browsers do.
func (a *Authority) IssuePEM(role string, hosts []string) (cert, key []byte, err error) {
	id, err := URI(a.world, role)
	if err != nil {
		return nil, nil, err
	}
	template, err := newTemplate(role)
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
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &own.PublicKey, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: sign %s: %w", role, err)
	}
	key, err = keyPEM(own)
	return certPEM(der), key, err
}

func newTemplate(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("pki: serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validity), // an hour: clocks differ
	}, nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// keyPEM is PKCS#8, which OpenSSL and Go both read.
func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
