package testnet

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolSetTxChecksum is ETHTOOL_STXCSUM of linux/ethtool.h.
const ethtoolSetTxChecksum = 0x17

// DisableChecksumOffload makes an interface of the namespace compute checksums in software. The userspace datapath
// reads frames through AF_PACKET and would otherwise pass on the half-finished checksums that veth leaves in them.
func (n Namespace) DisableChecksumOffload(ifname string) error {
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		request := struct{ command, value uint32 }{ethtoolSetTxChecksum, 0}
		ifreq := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte // struct ifreq's union is larger than a pointer
		}{data: unsafe.Pointer(&request)}
		copy(ifreq.name[:unix.IFNAMSIZ-1], ifname)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifreq)))
		runtime.KeepAlive(&request)
		if errno != 0 {
			return fmt.Errorf("%s/%s: switch off transmit checksums: %w", n.Name, ifname, errno)
		}
		return nil
	})
}
