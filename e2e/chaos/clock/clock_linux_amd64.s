#include "textflag.h"

// gettime has the C signature of clock_gettime: the clock is in DI, the address
// of the seconds and nanoseconds in SI. The runtime calls it on the system stack.
TEXT ·gettime(SB),NOSPLIT|NOFRAME,$0
	SUBQ	$24, SP
	MOVQ	DI, 0(SP)
	MOVQ	SI, 8(SP)
	MOVQ	·vdso(SB), AX
	CALL	AX
	MOVQ	0(SP), DI
	MOVQ	8(SP), SI
	ADDQ	$24, SP
	CMPL	DI, $0 // CLOCK_REALTIME
	JNE	done
	MOVQ	·seconds(SB), CX
	ADDQ	CX, 0(SI)
done:
	RET

// func gettimeAddress() uintptr
TEXT ·gettimeAddress(SB),NOSPLIT,$0-8
	LEAQ	·gettime(SB), AX
	MOVQ	AX, ret+0(FP)
	RET
