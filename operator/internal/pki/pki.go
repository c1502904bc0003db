// Package pki makes the certificates of one world: a certificate authority and, for each
// part, a certificate whose URI says what it may do,
// spiffe://tangram/<world>/{driver|gateway|agent/<pod>|engine/<pod>}.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// validity of a certificate; long enough for any test, demo or trial.
const validity = 365 * 24 * time.Hour

// Files are paths of PEM files, as the C++ side and the Go side both read them.
type Files struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// Authority signs for one world.
type Authority struct {
	world string
	file  string
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
}

// What a name may be, so that it cannot change the shape of the URI.
var plain = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// URI of a role ("driver", "gateway", "agent/<pod>", "engine/<pod>") in a world.
func URI(world, role string) (*url.URL, error) {
	parts := strings.Split(role, "/")
	known := len(parts) == 1 && (role == "driver" || role == "gateway") ||
		len(parts) == 2 && (parts[0] == "agent" || parts[0] == "engine") && plain.MatchString(parts[1])
	if !known {
		return nil, fmt.Errorf("pki: role %q is not driver, gateway, agent/<pod> or engine/<pod>", role)
	}
	if !plain.MatchString(world) {
		return nil, fmt.Errorf("pki: world %q may hold letters, digits, '-', '_', '.' only", world)
	}
	return &url.URL{Scheme: "spiffe", Host: "tangram", Path: "/" + world + "/" + role}, nil
}

// OpenAuthority reads the authority of a folder (ca.crt, ca.key), or makes one.
func OpenAuthority(dir, world string) (*Authority, error) {
	if !plain.MatchString(world) {
		return nil, fmt.Errorf("pki: world %q may hold letters, digits, '-', '_', '.' only", world)
	}
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if errors.Is(err, os.ErrNotExist) {
		return newAuthority(dir, world, certFile, keyFile)
	}
	if err != nil {
		return nil, fmt.Errorf("pki: read the authority in %s: %w", dir, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("pki: %s is not an ECDSA key", keyFile)
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("pki: %s: %w", certFile, err)
	}
	if cert.Subject.CommonName != commonName(world) {
		return nil, fmt.Errorf("pki: %s is %q, not the authority of world %q", certFile, cert.Subject.CommonName, world)
	}
	return &Authority{world: world, file: certFile, cert: cert, key: key}, nil
}

func commonName(world string) string { return "tangram " + world }

func newAuthority(dir, world, certFile, keyFile string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("pki: %w", err)
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
	if err := writePair(certFile, keyFile, der, key); err != nil {
		return nil, err
	}
	return &Authority{world: world, file: certFile, cert: cert, key: key}, nil
}

// Issue writes <name>.crt and <name>.key beside the authority, for a role of its world.
// hosts are DNS names or IP addresses under which the part is reached.
func (a *Authority) Issue(name, role string, hosts []string) (Files, error) {
	id, err := URI(a.world, role)
	if err != nil {
		return Files{}, err
	}
	template, err := newTemplate(role)
	if err != nil {
		return Files{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.URIs = []*url.URL{id}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Files{}, fmt.Errorf("pki: make a key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return Files{}, fmt.Errorf("pki: sign %s: %w", role, err)
	}
	dir := filepath.Dir(a.file)
	files := Files{CA: a.file, Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
	return files, writePair(files.Cert, files.Key, der, key)
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

func writePair(certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	// PKCS#8, which OpenSSL and Go both read.
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}
