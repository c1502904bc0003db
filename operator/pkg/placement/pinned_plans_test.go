package placement

// pinnedPlans as UPDATE=1 writes them (pinned_test.go).
var pinnedPlans = map[string]string{
	"full, even": `moved 19, 1.002038, 1.001974: e4b2469d
the last try is from 494b4aef`,
	"full, large": `moved 138, 1.001000, 1.000875: 3bfe92e7
moved 112, 1.000726, 1.000833: dee971a0
moved 109, 1.000633, 1.000994: 44b712c3`,
	"full, near": `moved 23, 1.002015 near 0.3168, 1.005067 near 0.3189: 37e71bdd
the last try is from 1b0b118a`,
	"full, near and uneven": `moved 19, 1.003709 near 0.4189: 2f08ea46
moved 18, 1.002617 near 0.2679: 74a7b430
the last try is from 872dae43`,
	"full, no spare slot": `moved 15, 1.091381, 1.198526: dd1910bb
the last try is from 645be179`,
	"full, uneven": `moved 14, 1.002103: 5c65cfdb
moved 17, 1.004287: b5ad6d04
the last try is from a9a54bff`,
	"full, uneven and skewed": `moved 17, 1.031966: 2b12c65d
moved 17, 1.167174: 28d47354
the last try is from b7fb4a6c`,
	"full, very skewed": `moved 34, 1.003166, 1.002179: a3f24dae
the last try is from 8fe5b998`,
	"groups, if they pay": `moved 107, 1.003258 home 1.0000, 1.005575 home 1.0000: f259ea94
moved 65, 1.004766 home 1.0000, 1.003601 home 1.0000: 0c053eb2
the last try is from b17bf635`,
	"groups, kept": `moved 80, 1.005292 home 1.0000, 1.006541 home 1.0000: 9383de33
moved 56, 1.009856 home 0.9950, 1.005823 home 1.0000: 575de15c
the last try is from 3b76c8b3`,
	"groups, near": `moved 82, 1.006761 home 1.0000 near 0.5948, 1.008450 home 1.0000 near 0.4170: 2dcdc4fc
the last try is from 8752a2e9`,
	"groups, skewed": `moved 60, 1.575293 home 1.0000, 1.567586 home 1.0000: 771b3086
moved 29, 1.759983 home 0.9630, 1.387122 home 0.9537: 7823307f
the last try is from 343c0b13`,
	"groups, tiny and skewed": `moved 39, 1.010886 home 0.9922: fd7e12eb
moved 33, 1.008085 home 1.0000: 9c54097b
the last try is from c92aee77`,
	"groups, tiny loads": `moved 41, 1.000827 home 1.0000: e4ead25c
moved 33, 1.027145 home 0.9833: 0de25b4a
the last try is from 4f820576`,
	"groups, uneven": `moved 34, 1.044455 home 0.9520: f7b95a5c
moved 28, 1.143223 home 1.0000: 68eba562
moved 31, 1.304790 home 1.0000: 86668a65
the last try is from 86668a65`,
	"groups, uneven and near home": `moved 18, 1.066705 home 0.9577: abbbf8a0
moved 11, 1.208419 home 0.9614: d2c0f85a
the last try is from 643b839a`,
	"step, even": `moved 37, 1.006776, 1.006720, 1.004979: 6325049e
moved 19, 1.002459, 1.004909, 1.007525: 468501ba
moved 16, 1.005449, 1.006388, 1.005400: 65767b78
moved 14, 1.009253, 1.007984, 1.013363: 00b72047`,
	"step, free": `moved 13, 1.008717, 1.004751: 4c872dc4
moved 15, 1.006524, 1.008846: 174dc804
moved 14, 1.006455, 1.013135: bb7b28a1
moved 14, 1.001322, 1.011436: 90a87a86`,
	"step, large": `moved 113, 1.004136, 1.003809: dffbeb96
moved 25, 1.003506, 1.003980: 5cf5c4a6
moved 22, 1.002804, 1.003071: 668862f0
moved 26, 1.003852, 1.002990: 7f302a5e`,
	"step, more patient": `moved 25, 1.006222: c08a4424
moved 32, 1.003898: 4e2386de`,
	"step, near": `moved 25, 1.001325 near 0.3997, 1.035012 near 0.3328: a8efbeb5
moved 21, 1.010383 near 0.3263, 1.012706 near 0.3584: 7c5fb37a
moved 15, 1.011719 near 0.2929, 1.021934 near 0.3165: 85c63afd
moved 15, 1.018437 near 0.3198, 1.016391 near 0.3559: e3c220ad`,
	"step, near and uneven": `moved 23, 1.009203 near 0.4181, 1.005989 near 0.3212: 8eeaa34f
moved 27, 1.018226 near 0.3331, 1.013089 near 0.4333: 39587bd5
moved 19, 1.004435 near 0.4665, 1.010635 near 0.4554: a1b9db79
moved 23, 1.009922 near 0.4731, 1.018123 near 0.4295: 75731eea`,
	"step, of two alike": `moved 25, 1.006660: 0c622098
moved 20, 1.010133: 72895c45`,
	"step, patient": `moved 21, 1.037922: 4e160cec
moved 25, 1.003284: 1f807813`,
	"step, small 0": `moved 12, 1.019125, 1.030341: 87baef69
moved 5, 1.003185, 1.009445: 91134f52
moved 3, 1.009034, 1.025242: 524178d7`,
	"step, small 1": `moved 13, 1.027989, 1.029813: 57f88b89
moved 9, 1.019651, 1.014567: f5bb9f69
moved 7, 1.032933, 1.062912: 462cdaf0`,
	"step, small 2": `moved 11, 1.027737 near 0.3938, 1.026419 near 0.3920: a072f3ef
moved 8, 1.014458 near 0.3353, 1.021102 near 0.3542: a46fac0d
moved 9, 1.025856 near 0.4615, 1.020284 near 0.3531: 136e8a1f`,
	"step, small 3": `moved 10, 1.049535, 1.050769: a2f7d1dc
moved 11, 1.015973, 1.055493: c04ab947
moved 10, 1.027721, 1.057905: bef3d8a2`,
	"step, small 4": `moved 16, 1.000997, 1.009524: 575f364b
moved 15, 1.004122, 1.002269: 10741ae1
moved 10, 1.005501, 1.008015: e5df1af2`,
	"step, small 5": `moved 18, 1.029352 near 0.3671, 1.004663 near 0.4931: 8df99a18
moved 12, 1.147052 near 0.3012, 1.041771 near 0.3574: 3e6b2483
moved 31, 1.008794 near 0.3300, 1.006661 near 0.3490: 59c5681a`,
	"step, small 6": `moved 17, 1.007110, 1.158495: 1bbd52fa
moved 9, 1.016779, 1.009298: 9e0fae79
moved 11, 1.107677, 1.018308: 3bf772ef`,
	"step, small 7": `moved 22, 1.063136, 1.123388: 8726cb16
moved 10, 1.130777, 1.055388: 7891c371
moved 13, 1.054390, 1.062707: 2b7b9b9f`,
	"step, tiny loads": `moved 9, 1.035604, 1.086838: 243b1352
moved 13, 1.006706, 1.011106: dfa0dad9`,
	"step, uneven": `moved 22, 1.014181, 1.051966, 1.022404: 40447586
moved 25, 1.013154, 1.019481, 1.010832: 82f2852e
moved 29, 1.012248, 1.009845, 1.018629: c3a8e377
moved 20, 1.009302, 1.011016, 1.013594: 1dde2ec6
moved 18, 1.026384, 1.014026, 1.012774: b09c72a9
moved 23, 1.015227, 1.026395, 1.015160: 7ebb4d2d`,
	"step, uneven and skewed": `moved 22, 1.039857, 1.086966, 1.055580: 3fa73697
moved 28, 1.030847, 1.016722, 1.027614: f6407a7e
moved 30, 1.040428, 1.019919, 1.040331: b26990b6
moved 19, 1.050936, 1.089401, 1.014476: 23c8fb2a
moved 23, 1.045985, 1.145762, 1.043913: 40d56a61
moved 28, 1.057262, 1.012203, 1.048470: 572d29d2`,
	"step, very skewed": `moved 48, 1.007274, 1.004780, 1.025940: 70cd8098
moved 35, 1.013351, 1.010342, 1.007222: c9b53ca5
moved 30, 1.030971, 1.034534, 1.005685: 56a828f4
moved 33, 1.012238, 1.012081, 1.013468: efcc89f7`,
	"step, whole loads": `moved 9, 1.041667, 1.020408: 1ee60025
moved 10, 1.074074, 1.034483: 7fcfa2e8`,
	"step, whole loads on fewer ranks": `moved 10, 1.029412, 1.022222: 231c03e8
moved 3, 1.046154, 1.010101: d811e4c3`,
	"step, whole loads, uneven": `moved 11, 1.013095, 1.096296: 21e085c0
moved 10, 1.024390, 1.021277: b39d4b6a`,
}
