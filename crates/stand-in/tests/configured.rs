//! A configured machine, in a process of its own.

mod rig;

use rig::*;
use sidestream_stand_in::configured;

#[test]
fn a_machine_is_configured_before_it_is_made_and_not_after() {
    let configure = |devices, seed, bytes| configured(devices, seed, bytes).is_ok();
    let d = load();
    let (mut at, mut other, mut count, mut free, mut all) = (0, 0, 0, 0, 0);
    // SAFETY: the pointers are to local variables.
    unsafe {
        assert_eq!((d.cuDeviceGetCount)(&mut count), 3, "not initialised");
        assert_eq!((d.cuMemAlloc_v2)(&mut at, 8), 3);
        ok((d.cuDriverGetVersion)(&mut count));
        assert_eq!((d.cuInit)(1), 1);
        assert!(!configure(0, 0, 0));
        assert!(!configure(17, 0, 0));
        assert!(configure(3, 0, 0));
        assert!(configure(1, 42, 1 << 20));
        let rig = Rig::new();
        assert!(!configure(2, 0, 0));
        assert_eq!(rig.contexts.len(), 1);
        ok((d.cuMemGetInfo_v2)(&mut free, &mut all));
        assert_eq!((free, all), (1 << 20, 1 << 20));
        ok((d.cuMemAlloc_v2)(&mut at, 1 << 19));
        assert_eq!((d.cuMemAlloc_v2)(&mut other, (1 << 19) + 1), 2);
        ok((d.cuMemFree_v2)(at));
        ok((d.cuMemAlloc_v2)(&mut at, 1 << 20));
    }
}
