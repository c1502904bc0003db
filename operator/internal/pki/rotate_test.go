package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func leafOf(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certPEM)
	require.NotNil(t, block)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert
}

// again returns the authority after a round trip through PEM.
func again(t *testing.T, a *Authority) *Authority {
	t.Helper()
	key, err := a.KeyPEM()
	require.NoError(t, err)
	next, err := a.NextKeyPEM()
	require.NoError(t, err)
	b, err := ParseAuthority("w", a.validity, a.BundlePEM(), key, next)
	require.NoError(t, err)
	require.Equal(t, a.Stage(), b.Stage())
	return b
}

// part is a process of the world that has loaded the authority's output at some time.
type part struct{ client, server Identity }

func (p *part) load(t *testing.T, a *Authority) {
	t.Helper()
	for role, i := range map[string]*Identity{"driver": &p.client, "agent/p": &p.server} {
		cert, key, err := a.IssuePEM(role, nil)
		require.NoError(t, err)
		require.NoError(t, i.Set(a.BundlePEM(), cert, key))
	}
}

// At each step of a replacement, a process that loaded it and a process one step behind trust each other, both ways.
func TestRotation_WhenProcessIsOneStepBehind(t *testing.T) {
	a, err := NewAuthority("w", Validity{Authority: 90 * time.Minute, Certificate: time.Hour})
	require.NoError(t, err)
	meet := func(x, y *part) {
		t.Helper()
		c, s := shake(t, x.client.Client("w", "agent/"), y.server.Server("w", "driver"))
		require.NoError(t, c)
		require.NoError(t, s)
	}
	var behind, ahead part
	behind.load(t, a)
	first := a.BundlePEM()
	// Certificates have whole seconds, and some time has passed since this one was made.
	load, now, slack := time.Minute, time.Now(), 5*time.Second
	for _, step := range []struct {
		after   time.Duration
		settled time.Duration
		stage   Stage
	}{{time.Hour, 0, Trusting}, {time.Hour + load, time.Hour, Signing}, {time.Hour + 3*load, time.Hour + 2*load, Alone}} {
		at := now.Add(step.after)
		settled := time.Time{}
		if step.settled != 0 {
			settled = now.Add(step.settled)
			moved, err := a.Advance(at, time.Time{}, load)
			require.NoError(t, err)
			require.False(t, moved, "nobody has settled")
		}
		moved, err := a.Advance(at.Add(-slack), settled, load)
		require.NoError(t, err)
		require.False(t, moved, "too early: %v", step.stage)
		moved, err = a.Advance(at.Add(slack), settled, load)
		require.NoError(t, err)
		require.True(t, moved)
		require.Equal(t, step.stage, a.Stage())
		a = again(t, a)
		ahead.load(t, a)
		meet(&ahead, &behind)
		meet(&behind, &ahead)
		behind.load(t, a)
		meet(&behind, &ahead)
	}
	require.NotEqual(t, first, a.BundlePEM())
	key, err := a.KeyPEM()
	require.NoError(t, err)
	_, err = ParseAuthority("w", Validity{}, first, key, nil)
	require.Error(t, err, "the key of another certificate")
}

// A certificate ends no later than its authority. Others are renewed when two thirds of their lifetime have passed.
func TestCertificateDoesNotOutliveAuthority(t *testing.T) {
	a, err := NewAuthority("w", Validity{Authority: time.Hour, Certificate: 48 * time.Hour})
	require.NoError(t, err)
	cert, _, err := a.IssuePEM("driver", nil)
	require.NoError(t, err)
	leaf := leafOf(t, cert)
	require.False(t, leaf.NotAfter.After(a.Expires()))
	until, expires := a.Good(cert)
	require.Equal(t, leaf.NotAfter, expires)
	require.Equal(t, leaf.NotAfter, until, "another one would end as early")
	other, err := NewAuthority("w", Validity{})
	require.NoError(t, err)
	until, _ = other.Good(cert)
	require.True(t, until.IsZero(), "signed by another")
	until, _ = a.Good([]byte("rubbish"))
	require.True(t, until.IsZero())
	cert, _, err = other.IssuePEM("driver", nil)
	require.NoError(t, err)
	until, expires = other.Good(cert)
	require.WithinDuration(t, time.Now().Add(20*24*time.Hour), until, time.Minute)
	require.WithinDuration(t, time.Now().Add(30*24*time.Hour), expires, time.Minute)
}

// Files are read again at each handshake. While they do not match, the last good ones are used.
func TestHandshakeReloadsFiles(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenFolder(dir, "w")
	require.NoError(t, err)
	files := issue(t, a, "agent/p0")
	server, err := Server(files, "w", "driver")
	require.NoError(t, err)
	client, err := Client(issue(t, a, "driver"), "w", "agent/")
	require.NoError(t, err)
	shown := func() *x509.Certificate {
		var leaf *x509.Certificate
		c := client.Clone()
		check := c.VerifyConnection
		c.VerifyConnection = func(s tls.ConnectionState) error { leaf = s.PeerCertificates[0]; return check(s) }
		cErr, sErr := shake(t, c, server)
		require.NoError(t, cErr)
		require.NoError(t, sErr)
		return leaf
	}
	first := shown()
	require.Equal(t, first.SerialNumber, shown().SerialNumber)
	issue(t, a, "agent/p0") // again, over the same files
	second := shown()
	require.NotEqual(t, first.SerialNumber, second.SerialNumber)
	key, err := os.ReadFile(files.Key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(files.Key, []byte("half"), 0o600))
	require.Equal(t, second.SerialNumber, shown().SerialNumber)
	require.NoError(t, os.WriteFile(files.Key, key, 0o600))

	// Another authority for all processes: they trust it from the next handshake on.
	require.NoError(t, os.Remove(dir+"/ca.crt"))
	require.NoError(t, os.Remove(dir+"/ca.key"))
	b, err := OpenFolder(dir, "w")
	require.NoError(t, err)
	issue(t, b, "agent/p0")
	issue(t, b, "driver")
	require.NotEqual(t, second.AuthorityKeyId, shown().AuthorityKeyId)
}
