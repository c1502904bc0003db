package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
)

// Client is a TLS configuration that shows the certificate of `files` and accepts only
// servers of the world whose role begins with `role` ("agent/", "engine/").
func Client(files Files, world, role string) (*tls.Config, error) {
	pair, pool, err := load(files)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: pool,
		VerifyConnection: func(s tls.ConnectionState) error { return verifyRole(s, world, role) },
	}, nil
}

// Server is a TLS configuration that asks every client for a certificate of the world
// whose role begins with `role`.
func Server(files Files, world, role string) (*tls.Config, error) {
	pair, pool, err := load(files)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		VerifyConnection: func(s tls.ConnectionState) error { return verifyRole(s, world, role) },
	}, nil
}

func load(files Files) (tls.Certificate, *x509.CertPool, error) {
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return pair, nil, fmt.Errorf("pki: read %s and %s: %w", files.Cert, files.Key, err)
	}
	ca, err := os.ReadFile(files.CA)
	if err != nil {
		return pair, nil, fmt.Errorf("pki: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return pair, nil, fmt.Errorf("pki: no certificate in %s", files.CA)
	}
	return pair, pool, nil
}

func verifyRole(s tls.ConnectionState, world, role string) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("pki: the other side shows no certificate")
	}
	want := "spiffe://tangram/" + world + "/" + role
	for _, uri := range s.PeerCertificates[0].URIs {
		if strings.HasPrefix(uri.String(), want) {
			return nil
		}
	}
	return fmt.Errorf("pki: the other side is %v, want one that begins with %s", s.PeerCertificates[0].URIs, want)
}
