package box

import "golang.org/x/sys/unix"

// systemCallABIs returns the ABIs of 64-bit programs and of 32-bit ARM
// programs.
func systemCallABIs() []abi {
	return []abi{
		{arch: unix.AUDIT_ARCH_AARCH64, socket: unix.SYS_SOCKET, socketpair: unix.SYS_SOCKETPAIR, denied: deniedHere(), foreign: foreignHere()},
		{
			// Numbers of arch/arm/tools/syscall.tbl, in the order of deniedHere.
			arch: unix.AUDIT_ARCH_ARM, socket: 281, socketpair: 288, socketcall: 102,
			denied:  []uint32{309, 310, 311, 386, 364, 388, 128, 379, 129, 347, 371, 425, 426, 427, 401},
			foreign: foreignCalls(369, 97, 314, 156, 154, 380),
		},
	}
}
