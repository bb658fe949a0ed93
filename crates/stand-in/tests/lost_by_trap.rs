//! A kernel that traps, in a process of its own: the devices are lost for good.

mod rig;

use rig::*;

#[test]
fn a_trap_makes_every_later_call_fail() {
    let rig = Rig::new();
    let d = rig.driver;
    let (stream, trap) = (rig.stream(), rig.function(&FAULT, c"trap"));
    let (event, mut at, mut out) = (rig.event(), 0, 0);
    ok(rig.launch(trap, &[], stream));
    // SAFETY: the pointers are to local variables.
    unsafe {
        ok((d.cuEventRecord)(event, stream));
        assert_eq!(rig.synchronize(stream), 719);
        assert_eq!((d.cuEventQuery)(event), 719);
        assert_eq!((d.cuMemAlloc_v2)(&mut at, 64), 719);
        assert_eq!((d.cuEventCreate)(&mut out, 0), 719);
        assert_eq!(rig.launch(trap, &[], stream), 719);
        assert_eq!((d.cuCtxSynchronize)(), 719);
        // Calls that only return properties of the devices still work.
        let mut count = 0;
        ok((d.cuDeviceGetCount)(&mut count));
        assert_eq!(count, 2);
    }
}
