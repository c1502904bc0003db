package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
)

// material is the certificate that one side of a connection presents, and the authorities that it trusts.
type material struct {
	pair tls.Certificate
	pool *x509.CertPool
}

// Identity holds a process's current certificate and trusted authorities. They may change while connections are open:
// each handshake uses the current ones.
type Identity struct {
	files *Files // read again at each handshake; nil: use the material of Set
	last  atomic.Pointer[material]
}

// FromFiles returns an identity in files that another process renews, as the kubelet does in a mounted Secret.
func FromFiles(files Files) (*Identity, error) {
	i := &Identity{files: &files}
	m, err := read(files)
	if err != nil {
		return nil, err
	}
	i.last.Store(m)
	return i, nil
}

// Set replaces the certificate and the trusted authorities.
func (i *Identity) Set(ca, cert, key []byte) error {
	m, err := parse(ca, cert, key)
	if err == nil {
		i.last.Store(m)
	}
	return err
}

// now returns the current material. If files cannot be read or do not match, it returns the last good material: they
// are probably being replaced. If they stay so, the last certificate expires.
func (i *Identity) now() (*material, error) {
	if i.files != nil {
		if m, err := read(*i.files); err == nil {
			i.last.Store(m)
		}
	}
	if m := i.last.Load(); m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("pki: no certificate was set")
}

// Client returns a TLS configuration that presents the certificate of `files`. It accepts only servers of the world
// whose role begins with `role` ("agent/", "engine/").
func Client(files Files, world, role string) (*tls.Config, error) {
	i, err := FromFiles(files)
	if err != nil {
		return nil, err
	}
	return i.Client(world, role), nil
}

// Client is like the function Client, for an identity.
func (i *Identity) Client(world, role string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			m, err := i.now()
			if err != nil {
				return nil, err
			}
			return &m.pair, nil
		},
		// Go's own check needs the address in the certificate; VerifyConnection checks chain and role instead.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection checks more
		VerifyConnection: func(s tls.ConnectionState) error {
			m, err := i.now()
			if err != nil {
				return err
			}
			return verify(s, m.pool, x509.ExtKeyUsageServerAuth, world, role)
		},
	}
}

// Server returns a TLS configuration that requires from every client a certificate of the world whose role begins with
// `role`.
func Server(files Files, world, role string) (*tls.Config, error) {
	i, err := FromFiles(files)
	if err != nil {
		return nil, err
	}
	return i.Server(world, role), nil
}

// Server is like the function Server, for an identity.
func (i *Identity) Server(world, role string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		m, err := i.now()
		if err != nil {
			return nil, err
		}
		return &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.pair}, NextProtos: []string{"h2"},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: m.pool,
			VerifyConnection: func(s tls.ConnectionState) error {
				return verify(s, m.pool, x509.ExtKeyUsageClientAuth, world, role)
			},
		}, nil
	}}
}

func read(files Files) (*material, error) {
	var ca, cert, key []byte
	var err error
	for _, f := range []struct {
		path string
		into *[]byte
	}{{files.CA, &ca}, {files.Cert, &cert}, {files.Key, &key}} {
		if *f.into, err = os.ReadFile(f.path); err != nil {
			return nil, fmt.Errorf("pki: %w", err)
		}
	}
	return parse(ca, cert, key)
}

func parse(ca, cert, key []byte) (*material, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("pki: no certificate in the PEM of the authority")
	}
	return &material{pair, pool}, nil
}

// verify checks the chain to the world's authority, and the role.
func verify(s tls.ConnectionState, pool *x509.CertPool, usage x509.ExtKeyUsage, world, role string) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("pki: the peer presents no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	leaf := s.PeerCertificates[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
		return fmt.Errorf("pki: the peer does not belong to world %q: %w", world, err)
	}
	want := "spiffe://tangram/" + world + "/" + role
	for _, uri := range leaf.URIs {
		if strings.HasPrefix(uri.String(), want) {
			return nil
		}
	}
	return fmt.Errorf("pki: the peer has the identity %v, want one that begins with %s", leaf.URIs, want)
}
