"""Logs in other languages than English: the few words that rules look at, put into English.

Only words that count, measure, evaluate, save, load and end are known; all else stays as it is. A language's word is
one of its dictionary, in the forms that progress records use.
"""

from __future__ import annotations

import re
from functools import lru_cache

# English meaning: the words of other languages. Latin letters with and without accents, as many logs leave them out.
_LATIN = {
    "epoch": "épocas? épokas? épochas? époques? epoques? epocas? época épocas epoche epochen epok epoke epoka epoki"
    " epocha epochy epocă epohă dönem devir",
    "step": "schritte? trainingsschritte? iterationsschritte?"
    " schrittes étapes? etapes? paso pasos passo passi passos krok kroki kroku kroků stap stappen steg"
    " skritt trin pas adım adim bước buoc langkah lépés askel",
    "iteration": "itération itérations iteración iteraciones iteracion iteração iterações iteracao iterazione"
    " iterazioni iteracja iteracji iteratie iteraties iterace iterasyon iterație iterácia",
    "batch": "lote lotes lotto lotti stapel",
    "loss": "verlust perte pertes pérdida pérdidas perdida perda perdas perdita strata verlies ztráta förlust"
    " kayıp kayip kerugian pierdere veszteség häviö",
    "error": "fehler erreur fout chyba błąd",
    "accuracy": "genauigkeit exactitude précision precisión precisão precisione acurácia accuratezza dokładność"
    " nauwkeurigheid přesnost noggrannhet doğruluk",
    "lr": "lernrate",
    "time": "dauer zeit temps tiempo tempo czas tijd čas süre",
    "validation": "validierung validación validação validazione convalida walidacja validatie validace validering"
    " doğrulama",
    "evaluation": "auswertung évaluation evaluación evaluando avaliação avaliando valutazione évaluer évaluons",
    "saving": "speichere speichern sauvegarde enregistrement guardando guardado salvando salvataggio zapisywanie"
    " zapisano opslaan ukládání sparar kaydediliyor",
    "loading": "chargement cargando carregando caricamento wczytywanie ładowanie načítání laddar yükleniyor",
    "training": "entraînement entrainement apprentissage entrenamiento treinamento treino addestramento trening"
    " trénink trénování träning eğitim pelatihan",
    "completed": "abgeschlossen beendet terminé terminée fini completado completada finalizado terminado concluído"
    " concluido completato terminato zakończony zakończone zakończono voltooid dokončeno dokončen slutförd"
    " tamamlandı selesai",
    "starting": "beginne début commencement comenzando iniciando inizio rozpoczęcie",
    "of": "von sur de di z van av из з",
}
_SCRIPTS = (
    # Chinese
    (r"第\s*(\d+)(?:\s*/\s*(\d+))?\s*(?:个\s*)?(?:步|次迭代|次)", "step"),
    (r"第\s*(\d+)(?:\s*/\s*(\d+))?\s*(?:个\s*)?(?:轮|輪|周期|回合|代)(?:训练|訓練)?", "epoch"),
    (r"第\s*(\d+)(?:\s*/\s*(\d+))?\s*(?:个\s*)?(?:批次?|エポック)", "batch"),
)
_WORDS = (
    ("学习率|學習率|学習率|학습률|скорость обучения|темп обучения|швидкість навчання", "lr"),
    ("taux d['’ ]apprentissage|tasa de aprendizaje|taxa de aprendizado|tasso di apprendimento", "lr"),
    (
        "(?:训练|訓練|学習|トレーニング)(?:が|を|已|已经)?(?:完成|结束|結束|完了|終了)(?:しました)?|(?:학습|훈련)(?:이|을)?\\s*(?:완료|종료)"
        "|(?:обучение|тренировка|навчання) (?:завершен[оа]|закончен[оа]|окончен[оа])",
        "training completed",
    ),
    ("总步数|總步數|総ステップ数|всего шагов|최대 스텝", "total steps"),
    ("步数|步數|步骤|ステップ|스텝|단계|шаг(?:а|ов|и)?(?!\\w)|крок(?:у|ів)?(?!\\w)|βήμα|خطوة|चरण", "step"),
    (
        "轮次|轮数|輪次|纪元|エポック|에포크|에폭|эпох(?:а|и|у)?(?!\\w)|епох(?:а|и)?(?!\\w)|εποχή|حقبة|युग",
        "epoch",
    ),
    ("迭代(?:次数)?|反復|イテレーション|반복|итераци(?:я|и|й)|ітераці(?:я|ї)|επανάληψη|تكرار", "iteration"),
    ("批次|バッチ|배치|батч|пакет", "batch"),
    ("损失|損失|손실|потер(?:и|я|ь)|втрат(?:и|а)|απώλεια|الخسارة|خسارة|हानि|mất mát", "loss"),
    ("误差|誤差|ошибка|помилка|오차", "error"),
    ("准确率|準確率|精度|正解率|정확도|точность|точність", "accuracy"),
    ("耗时|用时|経過時間|時間|시간|(?<!\\w)(?:время|час)(?!\\w)", "time"),
    ("验证集?|驗證|検証|검증|валидаци\\w*|валідаці\\w*|проверк\\w*", "validation"),
    ("评估|評估|評価|평가|оценк\\w*", "evaluation"),
    ("测试集?|測試|テスト|테스트|тест(?:овый|ирование)?(?!\\w)", "test"),
    ("保存|저장|сохран\\w*|збереж\\w*", "saving"),
    ("加载|加載|載入|読み込み|불러오\\w*|загруз\\w*|завантаж\\w*", "loading"),
    ("下载|ダウンロード|다운로드|скачивани\\w*", "downloading"),
    ("检查点|チェックポイント|체크포인트|чекпоинт\\w*|контрольн\\w* точк\\w*", "checkpoint"),
    ("训练|訓練|学習|トレーニング|학습|훈련|обучени\\w*|тренировк\\w*|навчанн\\w*", "training"),
)
_OTHER_LETTERS = re.compile(r"[À-ɏͰ-ӿ؀-ۿऀ-ॿ぀-ヿ一-鿿가-힣Ạ-ỹ]")
_IN_SCRIPTS = tuple((re.compile(pattern, re.IGNORECASE), english) for pattern, english in _SCRIPTS)
_IN_WORDS = tuple((re.compile(pattern, re.IGNORECASE), f" {english} ") for pattern, english in _WORDS)
# "of" stands between two numbers alone; words this short mean something else elsewhere.
_OF = re.compile(rf"(?<=\d) (?:{'|'.join(_LATIN.pop('of').split())}) (?=\d)")
_ENGLISH = {
    form: english
    for english, forms in _LATIN.items()
    for word in forms.split()
    for form in ({word[:-2], word[:-2] + word[-2]} if word.endswith("?") else {word})
}
_A_WORD = re.compile(r"[^\W\d_]+")
_BEFORE_NUMBER = re.compile(r"\s*[:=#]?\s*\d")
_SHORT = {"pas", "fini", "stapel"}
"""Words that mean something else too: taken only where a number follows."""
_PUNCTUATION = str.maketrans("\uff1a\uff0c\u3002\uff1b\uff08\uff09\uff1d\u3001\uff0f\uff5c", ":,.;()=,/|")


@lru_cache(maxsize=8)
def in_english(text: str) -> str:
    """The text with the words that rules look at in English; the text itself where it has none."""
    if not text.isascii() and _OTHER_LETTERS.search(text) is not None:
        for pattern, english in _IN_SCRIPTS:
            text = pattern.sub(
                lambda match, name=english: f" {name} {match[1]}{'/' + match[2] if match[2] else ''} ",  # type: ignore[misc]
                text,
            )
        for pattern, english in _IN_WORDS:
            text = pattern.sub(english, text)
        text = text.translate(_PUNCTUATION)
    if _ENGLISH.keys().isdisjoint(_A_WORD.findall(text.lower())):
        return text
    return _OF.sub(" of ", _A_WORD.sub(_translated, text))


def _translated(match: re.Match[str]) -> str:
    word = match[0].lower()
    if word in _SHORT and _BEFORE_NUMBER.match(match.string, match.end()) is None:
        return match[0]
    return _ENGLISH.get(word, match[0])
